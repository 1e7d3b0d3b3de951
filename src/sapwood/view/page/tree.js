// Which recordings the list shows, in which order, at which depth.

const DEEPEST = 6;

const view = { sort: null, down: true, words: "", closed: new Set() };

const COLUMNS = [
  { key: "name", title: "Recording", of: (r) => r.name, show: (name, row) => nameCell(name, row) },
  { key: "signature", title: "Signature", of: (r) => r.signature, show: (text) => make("span", { class: "text", title: text }, text) },
  { key: "hits", title: "Hits", number: true, of: (r) => r.hits },
  { key: "misses", title: "Misses", number: true, of: (r) => (missesOf.get(r.id) ?? []).length,
    show: (number) => (number ? make("span", { class: "missed" }, count(number)) : numberCell(number)) },
  { key: "ops", title: "Ops", number: true, of: (r) => r.ops },
  { key: "pages", title: "Pages", number: true, of: (r) => r.pages },
  { key: "record", title: "Record", number: true, of: (r) => r.host_us[0], show: microseconds },
  { key: "replay", title: "Replay", number: true, of: (r) => r.host_us[1], show: microseconds },
  { key: "state", title: "State", of: (r) => states(r).join(" "), show: (_, { recording }) => tags(recording) },
];

const BY_NAME = new Intl.Collator("en", { numeric: true }).compare;

function states(recording) {
  return ["live", "escapes", "restored"].filter((name) => recording[name]);
}

function tags(recording) {
  return states(recording).map((name) => make("span", { class: `tag tag-${name}` }, name));
}

const searched = new Map(snapshot.recordings.map((r) => [r.id, [
  r.name, r.function, r.signature, ...states(r), ...r.arguments.map((a) => `${a.name} ${a.role}`),
].join(" ").toLowerCase()]));

function matches(recording) {
  if (state.function && recording.function !== state.function) return false;
  const words = view.words.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => searched.get(recording.id).includes(word));
}

// Rows of `{recording, depth, kids, joins, guides}`; a tree only when nothing else is
// asked. `joins`: how it hangs on the row of its parent; `guides`: at which depths lines
// of ancestors pass by.
function rows() {
  if (view.sort === null && !view.words && !state.function) return treeRows();
  const found = snapshot.recordings.filter(matches);
  if (view.sort !== null) order(found);
  return found.map((recording) => ({ recording, depth: 0, kids: 0, joins: "", guides: [] }));
}

function order(found) {
  const { of, number } = COLUMNS.find(({ key }) => key === view.sort);
  const sign = view.down ? -1 : 1;
  found.sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return (x === null) - (y === null); // unknown: last
    return sign * (number ? x - y : BY_NAME(x, y)) || a.id - b.id;
  });
}

// An only child stands below its parent, at the same depth: chains stay readable.
function treeRows() {
  const told = [];
  const waiting = hung(children.get(null) ?? [], 0, "", []);
  while (waiting.length) {
    const row = waiting.pop();
    const below = children.get(row.recording.id) ?? [];
    told.push({ ...row, kids: below.length });
    if (view.closed.has(row.recording.id)) continue;
    if (below.length === 1) waiting.push(...hung(below, row.depth, "chain", row.guides));
    else waiting.push(...hung(below, Math.min(DEEPEST, row.depth + 1), "branch", row.guides));
  }
  return told;
}

// Rows for siblings, the last one first, as a stack wants them.
function hung(siblings, depth, joins, guides) {
  const last = siblings.length - 1;
  return siblings.map((recording, index) => {
    const passing = joins === "branch" && index < last;
    return { recording, depth, joins, passing, guides: passing ? [...guides, depth] : guides };
  }).reverse();
}

function sortBy(key) {
  const { number = false } = COLUMNS.find((c) => c.key === key);
  view.down = view.sort === key ? !view.down : number; // numbers: largest first
  view.sort = key;
}
