// Numbers as people read them.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }).format;

// Three significant digits, or all before the point; no exponent.
const short = new Intl.NumberFormat("en", {
  maximumSignificantDigits: 3, maximumFractionDigits: 0, roundingPriority: "morePrecision",
}).format;

function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
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
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

// Page numbers as people list them: 3–7, 12.
function intervals(numbers) {
  const all = new Set(numbers.toSorted((a, b) => a - b));
  const firsts = [...all].filter((number) => !all.has(number - 1));
  const lasts = [...all].filter((number) => !all.has(number + 1));
  return firsts.map((first, index) => (first === lasts[index] ? first : `${first}–${lasts[index]}`)).join(", ");
}

function moment(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return text;
  return date.toLocaleString("en", { dateStyle: "long", timeStyle: "short", hourCycle: "h23" });
}
