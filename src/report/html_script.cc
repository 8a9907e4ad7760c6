// SPDX-License-Identifier: Apache-2.0
//
// Script of the HTML report: plain JavaScript, text nodes only.
#include "src/report/html.h"

namespace batchproof {

std::string_view html_script() {
  return R"js('use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const byId = id => document.getElementById(id);
const GLYPHS = {pass: '\u2713', violation: '\u2717', vacuous: '\u2205', skipped: '\u2013', error: '!',
  wrong: '\u2260', slow: '\u2193', heavy: '\u2191'};
const MEANING = {pass: 'bytes equal, and the check could have failed', violation: 'bytes differ',
  vacuous: 'nothing could have failed', skipped: 'not run or not judged', error: 'could not be judged',
  wrong: 'inaccurate: not variant, but not the right result', slow: 'below its standard of performance',
  heavy: 'above its standard of memory'};
const PAGE = 2000;

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    node.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const axesText = cell => Object.entries(cell.axes).map(([name, value]) => name + '=' + value).join(' ');
const relationFails = (cell, relation) => !cell.as_expected && !relation.excused && relation.verdict !== relation.expected &&
  (relation.verdict !== 'skipped' || relation.expected === 'violation');
function note(cell, relation) {
  if (relationFails(cell, relation)) {
    if (relation.expected === 'violation' && relation.verdict !== 'error') return 'missed';
    return cell.is_control && relation.verdict === 'violation' ? 'unexpected' : 'fails';
  }
  if (cell.is_control && relation.verdict === 'violation') return 'caught';
  if (cell.is_control && relation.verdict === 'pass') return 'clear';
  return relation.verdict === 'pass' || relation.verdict === 'skipped' ? '' : 'allowed';
}

function boxClass(verdict, fails, declared) {
  return 'box ' + verdict + (fails ? ' fails' : '') + (declared ? ' declared' : '');
}

function relationBox(cell, relation) {
  const fails = relationFails(cell, relation);
  const text = note(cell, relation);
  const witness = relation.witness.kind === 'none' ? '' :
    '; witness ' + relation.witness.kind + ' ' + relation.witness.rows_moved + '/' + relation.witness.rows_total;
  const title = relation.relation + ': ' + relation.verdict + (text ? ' (' + text + ')' : '') + '; ' +
    relation.bytes_differing + ' / ' + relation.bytes_compared + ' bytes differ' + witness;
  const box = make('button', {type: 'button', class: boxClass(relation.verdict, fails, text === 'caught' ||
    text === 'clear' || text === 'allowed'), title, 'aria-label': title},
    text === 'missed' ? 'missed' : GLYPHS[relation.verdict]);
  box.addEventListener('click', () => select(box, cell, relation.relation));
  return box;
}

// Accuracy, performance and memory in one form.
function standardsOf(cell) {
  const list = [];
  const seconds = value => value < 1e-3 ? (value * 1e6).toPrecision(3) + ' us' : (value * 1e3).toPrecision(3) + ' ms';
  const short = value => typeof value === 'number' ? Number(value.toPrecision(3)) : value;
  if (cell.accuracy) {
    const a = cell.accuracy;
    const lines = ['standard: ' + a.standard + (a.benchmark ? ', benchmark ' + a.benchmark : '')];
    for (const port of a.ports) {
      lines.push(port.port + ' (' + port.dtype + ', ' + port.elements + ' elements): ' + port.verdict);
      if (port.rule) lines.push('  required: ' + port.rule);
      if (port.reason) lines.push('  ' + port.reason);
      for (const name of ['mare', 'mere', 'rmse']) {
        lines.push('  ' + name.toUpperCase() + ' ' + short(port.device[name]) +
          (port.benchmark ? ', benchmark ' + short(port.benchmark[name]) : '') +
          (port.ratio ? ', ratio ' + short(port.ratio[name]) : '') +
          (port.limit && port.limit[name] ? ', limit ' + short(port.limit[name]) : ''));
      }
      if (port.share !== null) lines.push('  share that holds: ' + short(port.share));
      if (port.worst) {
        lines.push('  worst: rank ' + port.worst.rank + ', element ' + port.worst.index + ': ' +
          elementText(port.worst.value, port.dtype) + ', golden ' + port.worst.golden +
          (port.worst.benchmark === null ? '' : ', benchmark ' + elementText(port.worst.benchmark, port.dtype)));
      }
    }
    list.push({name: 'acc', verdict: a.verdict, expected: a.expected, judged: true, reason: a.reason, lines});
  }
  if (cell.performance) {
    const p = cell.performance;
    const lines = p.runs === 0 ? [] : [short(p.ratio) + ' times the speed of ' + p.benchmark + ': ' +
      seconds(p.device_seconds) + ' against ' + seconds(p.benchmark_seconds) + ', medians of ' + p.runs,
      'asked for: each above ' + p.each_threshold + ', their mean above ' + p.mean_threshold];
    list.push({name: 'perf', verdict: p.verdict, expected: 'pass', judged: p.judged, reason: p.reason, lines});
  }
  if (cell.memory) {
    const m = cell.memory;
    const lines = m.benchmark ? [short(m.ratio) + ' times the memory of ' + m.benchmark + ', at most ' + m.threshold,
      'workspace ' + m.device_workspace + ' against ' + m.benchmark_workspace + ' bytes, tensors ' + m.tensor_bytes] : [];
    list.push({name: 'mem', verdict: m.verdict, expected: m.expected, judged: true, reason: m.reason, lines});
  }
  return list;
}
const standardFails = (cell, standard) => !cell.as_expected && standard.judged &&
  standard.verdict !== standard.expected && (standard.verdict !== 'skipped' || standard.expected !== 'pass');
const standardMissed = (cell, standard) => standardFails(cell, standard) &&
  !['pass', 'skipped'].includes(standard.expected) && standard.verdict !== 'error';
function standardWord(cell, standard) {
  if (!standard.judged) return 'reported';
  if (standardMissed(cell, standard)) return standard.verdict + ' (missed)';
  return standard.verdict + (standardFails(cell, standard) ? ' (fails)' :
    standard.verdict === standard.expected && !['pass', 'skipped'].includes(standard.verdict) ? ' (expected)' : '');
}
function standardBox(cell, standard) {
  const title = standard.name + ': ' + standardWord(cell, standard) + (standard.reason ? '; ' + standard.reason : '');
  const declared = standard.verdict === standard.expected && !['pass', 'skipped'].includes(standard.verdict);
  const box = make('button', {type: 'button', title, 'aria-label': title,
    class: boxClass(standard.verdict, standardFails(cell, standard), declared)},
    standardMissed(cell, standard) ? 'missed' : GLYPHS[standard.verdict]);
  box.addEventListener('click', () => select(box, cell, standard.name));
  return box;
}
function standardDetail(cell, standard) {
  const swatch = boxClass(standard.verdict, standardFails(cell, standard), false) + ' swatch';
  const text = (standard.reason ? ['reason: ' + standard.reason] : []).concat(standard.lines).join('\n');
  return make('section', {id: 'relation-' + standard.name},
    make('h4', {}, make('i', {class: swatch}, GLYPHS[standard.verdict]),
      standard.name + ': ' + standardWord(cell, standard)),
    make('div', {style: 'white-space: pre-wrap'}, text));
}

function fillMeans() {
  for (const mean of data.performance_means) {
    byId('totals').append(make('span', {class: 'badge ' + (mean.passed ? (mean.judged ? 'pass' : 'skipped') : 'slow')},
      'mean of perf, ' + mean.op + ': ' + Number(mean.mean.toPrecision(3)) + (mean.judged ? ', above ' : ', asked for ') +
      mean.threshold));
  }
}

function fillContext() {
  const c = data.context;
  const rows = [['version', c.version + ' (build ' + c.build + ')'], ['date', c.date], ['device', c.device],
    ['communicator', c.communicator], ['seed', String(c.seed)], ['command line', c.command_line]];
  for (const [name, value] of Object.entries(c.settings)) rows.push([name, value]);
  for (const [name, value] of rows) byId('context').append(make('dt', {}, name), make('dd', {}, value));
  const t = data.totals;
  byId('totals').append(make('span', {class: 'badge pass'}, t.passed + ' passed'),
    make('span', {class: 'badge violation'}, t.failed + ' failed'),
    make('span', {class: 'badge skipped'}, t.skipped + ' skipped'));
}

function fillLegend() {
  for (const [verdict, meaning] of Object.entries(MEANING)) {
    byId('legend').append(make('span', {}, make('i', {class: boxClass(verdict, false, false) + ' swatch'},
      GLYPHS[verdict]), verdict + ': ' + meaning));
  }
  byId('legend').append(make('span', {}, make('i', {class: 'box violation declared swatch'}, GLYPHS.violation),
    'striped: as a control or a case declares'));
  byId('legend').append(make('span', {}, make('i', {class: 'box violation fails swatch'}, GLYPHS.violation),
    'outlined: makes its cell fail'));
}

const FILTERS = [['all', () => true], ['failed', cell => !cell.as_expected],
  ['passed', cell => cell.as_expected && cell.verdict !== 'skipped'],
  ...['violation', 'vacuous', 'wrong', 'slow', 'heavy', 'skipped', 'error'].map(verdict => [verdict, cell => cell.verdict === verdict]),
  ['controls', cell => cell.is_control]];
let filter = data.totals.failed > 0 ? 'failed' : 'all';
let limit = PAGE;

function fillFilters() {
  for (const [name, test] of FILTERS) {
    const count = data.cells.filter(test).length;
    const chip = make('button', {type: 'button', class: 'chip', 'data-filter': name}, name + ' ' + count);
    chip.addEventListener('click', () => { filter = name; limit = PAGE; draw(); });
    byId('filters').append(chip);
  }
  byId('search').addEventListener('input', () => { limit = PAGE; draw(); });
}

function drawGroup(group) {
  const present = new Set(group.cells.flatMap(cell => cell.relations.map(relation => relation.relation)));
  const columns = data.relation_words.filter(word => present.has(word.name));
  const head = make('tr', {}, make('th', {}, 'case, axes'), make('th', {class: 'rel'}, 'cell'));
  for (const word of columns) head.append(make('th', {class: 'rel', title: 'changes: ' + word.changes}, word.name));
  const standards = ['acc', 'perf', 'mem'].filter(name =>
    group.cells.some(cell => standardsOf(cell).some(standard => standard.name === name)));
  for (const name of standards) head.append(make('th', {class: 'rel'}, name));
  const body = make('tbody', {});
  for (const cell of group.cells) {
    const name = cell.case + ' ' + axesText(cell);
    const open = make('button', {type: 'button', title: cell.id}, name);
    open.addEventListener('click', () => select(open, cell, null));
    const title = cell.verdict + (cell.as_expected ? ', as expected' : ', expected ' + cell.expected);
    const box = make('button', {type: 'button', title, 'aria-label': title, class: boxClass(cell.verdict,
      !cell.as_expected, cell.as_expected && cell.verdict !== 'pass' && cell.verdict !== 'skipped')},
      GLYPHS[cell.verdict]);
    box.addEventListener('click', () => select(box, cell, null));
    const row = make('tr', {}, make('td', {class: 'name'}, open), make('td', {}, box));
    const relations = new Map(cell.relations.map(relation => [relation.relation, relation]));
    for (const word of columns) {
      row.append(make('td', {}, relations.has(word.name) ? relationBox(cell, relations.get(word.name)) : null));
    }
    for (const name of standards) {
      const standard = standardsOf(cell).find(one => one.name === name);
      row.append(make('td', {}, standard ? standardBox(cell, standard) : null));
    }
    body.append(row);
  }
  const heading = make('h2', {}, group.op + ' / ' + (group.impl || '-'));
  if (group.defect) heading.append(' ', make('small', {}, 'control: ' + group.defect));
  byId('map').append(heading, make('table', {}, make('thead', {}, head), body));
}

function draw() {
  for (const chip of byId('filters').children) {
    chip.setAttribute('aria-pressed', String(chip.dataset.filter === filter));
  }
  const test = FILTERS.find(([name]) => name === filter)[1];
  const text = byId('search').value.toLowerCase();
  const chosen = data.cells.filter(cell => test(cell) && cell.id.toLowerCase().includes(text));
  const groups = [];
  for (const cell of chosen.slice(0, limit)) {
    const last = groups[groups.length - 1];
    if (last && last.op === cell.op && last.impl === cell.impl) last.cells.push(cell);
    else groups.push({op: cell.op, impl: cell.impl, defect: cell.is_control ? cell.defect : '', cells: [cell]});
  }
  byId('map').replaceChildren();
  groups.forEach(drawGroup);
  if (chosen.length > limit) {
    const more = make('button', {type: 'button', class: 'copy more'}, 'show all ' + chosen.length + ' cells');
    more.addEventListener('click', () => { limit = Infinity; draw(); });
    byId('map').append(more);
  }
  if (chosen.length === 0) byId('map').append(make('p', {class: 'muted'}, 'No cell matches.'));
  byId('shown').textContent = chosen.length + ' of ' + data.cells.length + ' cells';
}

// Shortest decimal that reads back as the same element; FP32 holds every narrower format.
function elementText(value, dtype) {
  if (typeof value !== 'number') return value;
  if (Object.is(value, -0)) return '-0';
  for (let digits = 1; digits < 17; ++digits) {
    const near = Number(value.toPrecision(digits));
    if (dtype === 'fp64' || dtype === 'int64' ? near === value : Math.fround(near) === value) return String(near);
  }
  return String(value);
}

// The two values, with the digits that differ marked.
function bytesLine(label, own, other, value) {
  const line = make('span', {}, label + ' ');
  for (let i = 0; i < own.length; ++i) line.append(own[i] === other[i] ? own[i] : make('mark', {}, own[i]));
  line.append(' = ' + value + '\n');
  return line;
}

function relationDetail(cell, relation) {
  const text = note(cell, relation);
  const part = make('section', {id: 'relation-' + relation.relation});
  const swatch = boxClass(relation.verdict, relationFails(cell, relation), false) + ' swatch';
  part.append(make('h4', {}, make('i', {class: swatch}, GLYPHS[relation.verdict]),
    relation.relation + ': ' + relation.verdict + (text ? ' (' + text + ')' : '')));
  const lines = [];
  if (relation.reason) lines.push('reason: ' + relation.reason);
  if (relation.verdict !== 'skipped') {
    lines.push(relation.bytes_differing + ' / ' + relation.bytes_compared + ' bytes differ, ' +
      relation.runs + ' runs');
  }
  const witness = relation.witness;
  if (witness.kind !== 'none') {
    lines.push('witness: ' + witness.kind + ', ' + witness.rows_moved + ' / ' + witness.rows_total + ' rows' +
      (witness.port ? ' of ' + witness.port : '') + ' moved' + (witness.how ? ' (' + witness.how + ')' : ''));
  }
  part.append(make('div', {}, lines.join('\n')));
  part.lastChild.style.whiteSpace = 'pre-wrap';
  const first = relation.first;
  if (first) {
    const box = make('pre', {});
    if (first.variant) box.append('changed: ' + first.variant + '\n');
    box.append('port ' + first.port + ', row ' + first.row + ', column ' + first.column +
      ', byte ' + first.byte + '\n');
    box.append('base rank ' + first.rank_a + ' index ' + first.index_a + ', variant rank ' + first.rank_b + ' index ' +
      first.index_b + '\n');
    const base = elementText(first.value_a, first.dtype);
    const variant = elementText(first.value_b, first.dtype);
    box.append(bytesLine(first.dtype + ' base   ', first.bytes_a, first.bytes_b, base));
    box.append(bytesLine(first.dtype + ' variant', first.bytes_b, first.bytes_a, variant));
    box.append('ULP ' + (first.ulp === null ? '-' : first.ulp) + ', largest ' + first.max_ulp + ', rows differing ' +
      first.rows_differing);
    part.append(box);
  }
  return part;
}

async function copyText(text, button) {
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch (refused) { done = false; }
  if (!done) {
    const area = make('textarea', {});
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
  }
  button.textContent = done ? 'copied' : 'copy failed';
}

let selected = null;
function select(node, cell, relation) {
  if (selected) selected.classList.remove('selected');
  selected = node;
  node.classList.add('selected');
  const panel = byId('detail');
  panel.replaceChildren();
  panel.hidden = false;
  const close = make('button', {type: 'button', class: 'close', 'aria-label': 'close'}, '\u00d7');
  close.addEventListener('click', () => { panel.hidden = true; node.classList.remove('selected'); });
  panel.append(close);
  panel.append(make('h3', {}, cell.id));
  const list = make('dl', {});
  const row = (name, value) => { if (value) list.append(make('dt', {}, name), make('dd', {}, value)); };
  row('verdict', cell.verdict + (cell.as_expected ? '' : ', expected ' + cell.expected));
  row('reason', cell.reason);
  row('requested', cell.impl);
  row('executed', cell.executed);
  row('control', cell.is_control ? cell.defect || 'yes' : '');
  row('inputs', cell.inputs);
  row('case', cell.position.file ? cell.position.file + ':' + cell.position.line + ':' + cell.position.column : '');
  row('seconds', Number(cell.seconds).toFixed(3));
  panel.append(list);
  if (cell.reproduce) {
    const button = make('button', {type: 'button', class: 'copy'}, 'copy');
    button.addEventListener('click', () => copyText(cell.reproduce, button));
    panel.append(make('h4', {}, 'reproduce', button), make('pre', {class: 'command'}, cell.reproduce));
  }
  for (const entry of cell.relations) panel.append(relationDetail(cell, entry));
  for (const standard of standardsOf(cell)) panel.append(standardDetail(cell, standard));
  if (cell.digests.length > 0) {
    panel.append(make('h4', {}, 'digests (XXH3-64)'), make('pre', {},
      cell.digests.map(digest => digest.digest + '  ' + digest.port).join('\n')));
  }
  // The panel alone scrolls, not the page under the pointer.
  panel.scrollTop = relation ? byId('relation-' + relation).offsetTop - 16 : 0;
}

fillContext();
fillMeans();
fillLegend();
fillFilters();
draw();
)js";
}

}  // namespace batchproof
