// Why calls did not replay: alike reasons together, the most frequent first.

function paintMisses() {
  const shown = snapshot.misses.filter((m) => !state.function || m.function === state.function);
  const whys = ({ reasons }) => new Set(reasons.length ? reasons.map(({ text }) => split(text)[0]) : ["no reason was kept"]);
  const groups = Map.groupBy(shown.flatMap((miss) => [...whys(miss)].map((why) => ({ why, miss }))), ({ why }) => why);
  const sorted = [...groups].sort((a, b) => b[1].length - a[1].length);
  const whole = snapshot.functions.filter(({ name }) => !state.function || name === state.function)
    .reduce((sum, f) => KINDS.reduce((n, { key, field }) => n + (key === "replay" ? 0 : f[field]), sum), 0);
  const told = shown.length < whole ? `${count(shown.length)} of ${counted(whole, "call")}, the last that were looked at,`
    : counted(shown.length, "call");
  fill("misses-lede", shown.length ? `${told} found no recording to replay. A call may have several reasons.`
    : "No call that is remembered missed.");
  const most = sorted.length ? sorted[0][1].length : 1;
  fill("reasons", sorted.map(([why, misses]) => missGroup(why, misses, most)));
}

// What is under a summary is made when it is first opened.
function folded(className, head, body) {
  const inside = make("div", { class: "inside" });
  const open = () => { if (!inside.hasChildNodes()) inside.append(body()); };
  return make("details", {}, make("summary", { class: className, click: open }, head), inside);
}

function missGroup(why, misses, most) {
  const part = Math.max(5, (1000 * misses.length) / most);
  return folded("group",
    [make("span", { class: "number" }, count(misses.length)), make("span", { class: "text why" }, why),
      strip("thin", "", [["accent", part]])],
    () => few(misses, 20, ({ miss }) => missEntry(miss)));
}

function missEntry(miss) {
  const about = miss.reasons.map(({ text }) => split(text)[1]).find(Boolean);
  const when = miss.call === null ? "" : `call ${count(miss.call + 1)}`;
  return folded("entry",
    [make("span", { class: "text" }, miss.function), make("span", { class: "text code" }, `(${miss.signature})`),
      aboutText(about), make("span", { class: "soft when" }, when)],
    () => make("div", {}, reasonList(miss), miss.call === null ? null
      : link("Show it among the calls", () => showCall(miss.call), { class: "link small" })));
}

function reasonList(miss) {
  return make("ul", { class: "reasons" }, miss.reasons.map(({ recording, text }) =>
    make("li", {}, recording === null ? null : [recordingLink(recording), ": "], reasonText(text))));
}
