// All about the recording chosen.

function tellRecording() {
  const recording = recordings.get(state.recording);
  if (!recording) return fill("detail", make("p", { class: "soft" },
    "Choose a recording to see its arguments, its outputs, its pages and why calls missed it."));
  fill("detail",
    make("h3", { class: "text" }, recording.name, " ", tags(recording)),
    make("p", { class: "text code" }, recording.signature),
    family(recording),
    make("dl", { class: "facts" }, facts(recording)),
    missed(recording),
    argumentTable(recording),
    outputTable(recording));
}

function family(recording) {
  const below = children.get(recording.id) ?? [];
  if (recording.parent === null && !below.length) return null;
  return make("p", { class: "family" },
    recording.parent === null ? "First of its tree" : ["After ", recordingLink(recording.parent)],
    below.length ? ["; before ", few(below, 6, (child) => make("span", { class: "step" }, recordingLink(child.id)))] : null);
}

function fact(name, ...value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function facts(recording) {
  const [record, replay] = recording.host_us;
  const kept = callsOf.get(recording.id) ?? [];
  const scratch = recording.clobbers.filter((number) => !recording.output_pages.includes(number));
  return [
    fact("replayed", counted(recording.hits, "time")),
    fact("recorded in", microseconds(record)),
    fact("a replay takes", microseconds(replay)),
    fact("ops", count(recording.ops)),
    fact("range", make("span", { class: "code" }, recording.range.address), `, ${counted(recording.range.pages, "page")}`),
    fact("scratch", pageList(scratch)),
    fact("outputs on", pageList(recording.output_pages)),
    fact("calls kept", kept.length
      ? link(counted(kept.length, "call"), () => showCall(kept[0]))
      : "none"),
  ];
}

function pageList(numbers) {
  if (!numbers.length) return "no pages";
  return `${numbers.length === 1 ? "page" : "pages"} ${intervals(numbers)}`;
}

// Reasons that agree are told once, with their number.
function missed(recording) {
  const all = missesOf.get(recording.id) ?? [];
  if (!all.length) return make("p", { class: "soft quiet" }, "No call that is remembered missed it.");
  const sorted = [...Map.groupBy(all, ({ text }) => text)].sort((a, b) => b[1].length - a[1].length);
  return make("div", { class: "missed-by" },
    make("h4", {}, `Missed ${counted(all.length, "time")}`),
    few(sorted, 5, ([text, { length }]) => make("p", { class: "reason" },
      length > 1 ? make("b", {}, `${count(length)} × `) : null, reasonText(text))));
}

function reasonText(text) {
  const [why, about] = split(text);
  return [make("span", { class: "text" }, why), aboutText(about)];
}

function aboutText(about) {
  return about ? make("span", { class: "about text" }, about) : null;
}

function argumentTable(recording) {
  if (!recording.arguments.length) return null;
  const notes = (a) => [a.written && "written", a.donated && "donated"].filter(Boolean).join(", ");
  return table(counted(recording.arguments.length, "argument"), ["name", "role", "", "bytes"],
    ["text code", null, "soft", "number"],
    recording.arguments.map((a) => [a.name, a.role, notes(a), size(a.bytes)]));
}

function outputTable(recording) {
  if (!recording.outputs.length) return null;
  return table(counted(recording.outputs.length, "output"), [], ["code", null, "number"],
    recording.outputs.map((output, index) => [String(index), output.live ? "held" : "let go", size(output.bytes)]));
}

// A table below its title; the classes are those of its columns.
function table(title, heads, classes, rows) {
  const head = make("tr", {}, heads.map((name) => make("th", { scope: "col" }, name)));
  return make("div", {}, make("h4", {}, title), make("table", {},
    heads.length ? make("thead", {}, head) : null,
    make("tbody", {}, rows.map((cells) => make("tr", {},
      cells.map((text, column) => make("td", { class: classes[column] }, text)))))));
}
