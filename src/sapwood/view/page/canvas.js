// Surfaces to draw on, in the colours of the page and the pixels of the screen.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// A line in a colour, through points of two numbers.
function line(context, name, ...points) {
  context.strokeStyle = colour(name);
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}

// Calls `paint(context, width, height)` when needed, in CSS pixels; returns what asks for it.
function surface(canvas, paint) {
  let asked = 0;
  const now = () => {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    paint(context, width, height);
  };
  const redraw = () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(now);
  };
  new ResizeObserver(redraw).observe(canvas);
  now();
  return redraw;
}

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
