// The place of the pointer, and the note beside it.

function position(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// The one floating note beside the pointer; lines of text, the first is its title.
function tip(event, lines) {
  const note = document.getElementById("tip");
  note.hidden = !lines;
  if (!lines) return;
  note.replaceChildren(
    ...lines.map((line, index) => make(index ? "div" : "strong", {}, line)),
  );
  const { width, height } = note.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - width - 8);
  const below = event.clientY + 18;
  const top = below + height > innerHeight ? event.clientY - height - 10 : below;
  note.style.left = `${Math.max(8, left)}px`;
  note.style.top = `${top}px`;
}
