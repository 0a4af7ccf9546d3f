// Numbers as people read them.

const whole = new Intl.NumberFormat("en");
let ahead = 0;

/** How many milliseconds the server's clock is ahead of this one's. */
export function setClock(milliseconds) {
  ahead = milliseconds;
}

/** Seconds since 1970, by the server's clock. */
export const now = () => (Date.now() + ahead) / 1000;

/** What has become of a device's part of a round. */
export const partStates = {
  open: "training",
  accepted: "accepted",
  refused: "refused",
  failed: "given back",
  expired: "too late",
  spare: "not needed",
};

export const count = (value) => whole.format(value);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function bytes(value) {
  if (value == null) return "";
  for (const [unit, size] of [
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ]) {
    if (value >= 0.9995 * size) return `${digits(value / size)} ${unit}`;
  }
  return `${value} B`;
}

export const percent = (value) => (value == null ? "" : `${(100 * value).toFixed(1)} %`);

/** On an axis: as many digits as its steps need. */
export const percents = (value) => `${Number((100 * value).toFixed(1))} %`;

/** Three digits that count. */
export function digits(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return whole.format(Math.round(value));
  if (size < 0.001) return value.toExponential(1);
  return value.toPrecision(3);
}

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds && seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** Of a moment that is near: what is told late by some seconds is told as now. */
export function ago(moment) {
  if (moment == null) return "never";
  const seconds = now() - moment;
  return seconds < 8 ? "just now" : `${duration(seconds)} ago`;
}
