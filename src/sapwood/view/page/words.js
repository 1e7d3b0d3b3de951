// Numbers as people read them.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function count(number) {
  return GROUPED.format(number);
}

function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// Three significant digits at most, and no exponent.
function short(value) {
  if (value >= 100) return GROUPED.format(value);
  return String(Number(value.toPrecision(value >= 10 ? 3 : 2)));
}

function unitOf(us) {
  return [[1e6, "s"], [1e3, "ms"]].find(([unit]) => us >= unit) ?? [1, "µs"];
}

function microseconds(us) {
  if (us === null) return "–";
  const [unit, name] = unitOf(us);
  return `${short(us / unit)} ${name}`;
}

function size(bytes) {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${short(bytes / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// Never 100 % of what is not all, and never 0 % of what is something.
function percent(part, whole) {
  if (part === 0 || part === whole) return part ? "100 %" : "0 %";
  const value = Math.min(99.9, Math.max(0.1, (100 * part) / whole));
  return `${value.toFixed(1)} %`;
}

function median(values) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Page numbers as people list them: 3–7, 12.
function intervals(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const told = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j += 1;
    told.push(i === j ? `${sorted[i]}` : `${sorted[i]}–${sorted[j]}`);
    i = j + 1;
  }
  return told.join(", ");
}

function moment(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return text;
  const day = date.toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric" });
  return `${day}, ${date.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false })}`;
}
