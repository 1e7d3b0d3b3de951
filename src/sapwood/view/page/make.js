// Elements are made, never parsed: what comes from the snapshot can only be text.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== ""));
  return element;
}

function fill(id, ...children) {
  const element = document.getElementById(id);
  element.replaceChildren(...children.flat().filter((child) => child !== null));
  return element;
}

// A button that looks like a word in a sentence.
function link(text, act, attributes = {}) {
  return make("button", { type: "button", class: "link", click: act, ...attributes }, text);
}

// The first few of many, and a button for the rest.
function few(items, limit, show) {
  const whole = make("div", { class: "few" }, items.slice(0, limit).map(show));
  const rest = items.slice(limit);
  if (rest.length) {
    const more = make("button", { type: "button" }, `Show ${count(rest.length)} more`);
    more.addEventListener("click", () => {
      more.remove();
      whole.append(few(rest, limit * 4, show));
    });
    whole.append(more);
  }
  return whole;
}
