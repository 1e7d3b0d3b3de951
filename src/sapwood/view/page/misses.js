// Why calls did not replay: alike reasons together, the most frequent first.

function beginMisses() {
  paintMisses();
  watch((changed) => {
    if (changed.has("function")) paintMisses();
  });
}

function paintMisses() {
  const shown = snapshot.misses.filter((m) => !state.function || m.function === state.function);
  const groups = new Map();
  for (const miss of shown) {
    const conditions = new Set(miss.reasons.map(({ text }) => split(text)[0]));
    for (const why of conditions.size ? conditions : ["no reason was kept"]) gather(groups, why, miss);
  }
  const sorted = [...groups].sort((a, b) => b[1].length - a[1].length);
  fill("misses-lede", shown.length
    ? `${counted(shown.length, "call")} found no recording to replay. A call may have several reasons.`
    : "No call that is remembered missed.");
  const most = sorted.length ? sorted[0][1].length : 1;
  fill("reasons", sorted.map(([why, misses]) => missGroup(why, misses, most)));
}

// What is under a button is made when it is opened.
function folded(head, attributes, body) {
  const inside = make("div", { class: "inside", hidden: true });
  const button = make("button", { type: "button", "aria-expanded": "false", ...attributes }, head);
  button.addEventListener("click", () => {
    const open = inside.hidden;
    if (open && !inside.childNodes.length) inside.append(body());
    inside.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  });
  return make("div", { class: "fold" }, button, inside);
}

function missGroup(why, misses, most) {
  const part = Math.max(5, (1000 * misses.length) / most);
  return folded(
    [make("span", { class: "number" }, count(misses.length)), make("span", { class: "text why" }, why),
      strip("thin", "", [["fill", part]])],
    { class: "group" },
    () => few(misses, 20, missEntry));
}

function missEntry(miss) {
  const about = miss.reasons.map(({ text }) => split(text)[1]).find(Boolean);
  const when = miss.call === null ? "" : `call ${count(miss.call + 1)}`;
  return folded(
    [make("span", { class: "text" }, miss.function), make("span", { class: "text code" }, `(${miss.signature})`),
      about ? make("span", { class: "about text" }, about) : null, make("span", { class: "soft when" }, when)],
    { class: "entry" },
    () => make("div", {}, reasonList(miss), callLink(miss)));
}

function callLink(miss) {
  if (miss.call === null) return null;
  return link("Show it among the calls", () => {
    pickCall(miss.call);
    show("calls");
  }, { class: "link small" });
}

function reasonList(miss) {
  return make("ul", { class: "reasons" }, miss.reasons.map(({ recording, text }) => {
    const [why, about] = split(text);
    return make("li", {}, recording === null ? null : [recordingLink(recording), ": "],
      make("span", { class: "text" }, why), about ? make("span", { class: "about text" }, about) : null);
  }));
}
