// SPDX-License-Identifier: Apache-2.0
//
// Markup and style of the HTML report. Verdicts are told by a glyph as well as by colour.
#include "src/report/html.h"

namespace batchproof {

std::string_view html_head() {
  return R"html(<body>
<header>
  <div class="title"><h1>batchproof</h1><div id="totals" class="totals"></div></div>
  <dl id="context"></dl>
</header>
<div class="bar">
  <div id="filters" class="filters" role="group" aria-label="Filter by verdict"></div>
  <input id="search" type="search" placeholder="part of a cell id" aria-label="Search cell ids">
  <span id="shown" class="muted"></span>
</div>
<div class="legend" id="legend"></div>
<main><div id="map"></div><aside id="detail" hidden aria-live="polite"></aside></main>
<noscript>This report needs JavaScript to draw its data; the JSON report holds the same.</noscript>
)html";
}

std::string_view html_style() {
  return R"css(:root {
  color-scheme: light dark;
  --bg: #f7f8fa; --panel: #ffffff; --text: #1c2330; --muted: #5e6879; --line: #d9dee7; --accent: #2459c4;
  --pass: #2f9e78; --violation: #d13f52; --vacuous: #dd9a1f; --skipped: #a3acba; --error: #7a4fc0; --on: #ffffff;
  --wrong: #a3195b; --slow: #8a6d1d; --heavy: #4a6b8a;
  --code: #eef1f6; --mark: #ffd9dd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #12161d; --panel: #1a2029; --text: #e4e8ef; --muted: #96a1b3; --line: #2e3745; --accent: #7da6ff;
    --pass: #2b8d6b; --violation: #d9485b; --vacuous: #c98a1a; --skipped: #566072; --error: #8d63d3; --on: #ffffff;
    --wrong: #c0387a; --slow: #94782c; --heavy: #5a7c9c;
    --code: #10141a; --mark: #6b2430;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
header { padding: 20px 24px 12px; background: var(--panel); border-bottom: 1px solid var(--line); }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: 16px; }
h1 { margin: 0; font-size: 22px; letter-spacing: -0.01em; }
h2 { margin: 24px 0 8px; font-size: 15px; }
h2 small { font-weight: 400; color: var(--muted); }
.totals { display: flex; gap: 8px; }
.badge { padding: 3px 10px; border-radius: 999px; color: var(--on); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 12px 0 0; font-size: 13px; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
.bar { position: sticky; top: 0; z-index: 3; display: flex; flex-wrap: wrap; gap: 10px; align-items: center;
  padding: 10px 24px; background: var(--panel); border-bottom: 1px solid var(--line); }
.filters { display: flex; flex-wrap: wrap; gap: 6px; }
button { font: inherit; color: inherit; cursor: pointer; }
.chip { padding: 3px 10px; border: 1px solid var(--line); border-radius: 999px; background: transparent; }
.chip[aria-pressed="true"] { border-color: var(--accent); color: var(--accent); font-weight: 600; }
input { font: inherit; color: inherit; background: var(--bg); border: 1px solid var(--line); border-radius: 6px;
  padding: 4px 10px; min-width: 220px; }
.muted { color: var(--muted); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; padding: 10px 24px 0; font-size: 13px; color: var(--muted); }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
main { display: flex; align-items: flex-start; gap: 24px; padding: 0 24px 48px; }
#map { flex: 1 1 auto; min-width: 0; overflow-x: auto; }
table { border-collapse: collapse; }
#map th { font-weight: 500; font-size: 12px; color: var(--muted); text-align: left; padding: 2px 6px; }
#map th.rel { text-align: center; min-width: 76px; }
#map td { padding: 1px 3px; }
#map tbody tr:hover { background: color-mix(in srgb, var(--accent) 8%, transparent); }
#map td.name { min-width: 430px; max-width: 560px; padding: 1px 12px 1px 6px; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis;
  font: 12.5px/1.5 ui-monospace, monospace; }
#map td.name button { all: unset; cursor: pointer; font: inherit; }
#map td.name button:hover { color: var(--accent); }
.box { display: block; width: 100%; min-width: 30px; height: 24px; padding: 0 6px; border: 2px solid transparent;
  border-radius: 5px; color: var(--on); font-size: 12px; font-weight: 700; line-height: 18px; text-align: center; }
.swatch { display: inline-block; width: 26px; height: 18px; line-height: 14px; }
.pass { background-color: var(--pass); }
.violation { background-color: var(--violation); }
.vacuous { background-color: var(--vacuous); }
.skipped { background-color: var(--skipped); }
.error { background-color: var(--error); }
.wrong { background-color: var(--wrong); }
.slow { background-color: var(--slow); }
.heavy { background-color: var(--heavy); }
.declared { background-image:
  repeating-linear-gradient(135deg, transparent 0 5px, rgba(255, 255, 255, 0.28) 5px 10px); }
.fails { border-color: var(--text); }
.selected { outline: 3px solid var(--accent); outline-offset: 1px; }
aside { flex: 0 0 460px; max-width: 46vw; position: sticky; top: 62px; max-height: calc(100vh - 80px); overflow: auto;
  margin-top: 20px; padding: 16px 18px; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }
aside h3 { margin: 0 0 6px; font-size: 14px; overflow-wrap: anywhere; }
aside h4 { margin: 16px 0 4px; font-size: 13px; display: flex; gap: 8px; align-items: center; }
aside .close { float: right; border: 0; background: none; font-size: 18px; line-height: 1; }
pre { margin: 4px 0; padding: 8px 10px; background: var(--code); border-radius: 6px;
  font: 12px/1.5 ui-monospace, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre mark { background: var(--mark); color: inherit; border-radius: 2px; }
.copy { border: 1px solid var(--line); border-radius: 6px; background: transparent; padding: 2px 10px;
  font-size: 12px; }
.more { margin: 12px 0; }
@media (max-width: 900px) {
  main { flex-direction: column-reverse; align-items: stretch; }
  aside { position: static; max-width: none; flex: none; max-height: none; }
}
@media print { .bar, aside .close, .copy { display: none; } }
)css";
}

}  // namespace batchproof
