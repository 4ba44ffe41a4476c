// Small plots of the daemon's histograms.

import { milliseconds, number } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 110;
const BASE = 92;

// Reads a histogram from the text of /metrics: the sum of its series. Returns {num, buckets: [{to_s, num}]}.
export function readBuckets(text, metric) {
  const cumulative = new Map();
  const line = new RegExp(`^${metric}_bucket\\{(?:.*,)?le="([^"]+)".*\\} (\\S+)`);
  for (const each of text.split("\n")) {
    const found = each.match(line);
    if (!found) continue;
    const bound = found[1] === "+Inf" ? Infinity : Number(found[1]);
    cumulative.set(bound, (cumulative.get(bound) ?? 0) + Number(found[2]));
  }
  const bounds = [...cumulative.keys()].sort((a, b) => a - b);
  const buckets = bounds.map((bound, index) => ({
    to_s: bound,
    num: cumulative.get(bound) - (index ? cumulative.get(bounds[index - 1]) : 0),
  }));
  return { num: cumulative.get(Infinity) ?? 0, buckets };
}

// The bound below which a share of all values is.
function quantile({ num, buckets }, share) {
  let seen = 0;
  for (const bucket of buckets) {
    seen += bucket.num;
    if (seen >= share * num) return bucket.to_s;
  }
  return Infinity;
}

function s(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

function bound(seconds) {
  return Number.isFinite(seconds) ? milliseconds(1000 * seconds) : "more";
}

// A bar for each bucket from the first to the last that has values.
export function histogram(counted, label) {
  const first = counted.buckets.findIndex((bucket) => bucket.num);
  const last = counted.buckets.findLastIndex((bucket) => bucket.num);
  // A few empty buckets beside a lonely one keep its bar narrow.
  const shown = counted.buckets.slice(Math.max(0, first - 1), Math.max(last + 2, first + 6));
  const most = Math.max(...shown.map((bucket) => bucket.num));
  const words = `${number(counted.num)} measured; half within ${bound(quantile(counted, 0.5))}, 95 % within ${bound(quantile(counted, 0.95))}`;
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${label}: ${words}` });
  const step = WIDTH / shown.length;
  shown.forEach((bucket, index) => {
    const height = bucket.num ? Math.max(2, (70 * bucket.num) / most) : 0;
    const bar = s("rect", { x: index * step + 1, y: BASE - height, width: step - 2, height, rx: 2 });
    bar.append(s("title", {}, `up to ${bound(bucket.to_s)}: ${number(bucket.num)}`));
    svg.append(bar);
    const every = Math.ceil(shown.length / 6);
    if (index % every === 0) svg.append(s("text", { x: (index + 1) * step - 2, y: HEIGHT - 4, "text-anchor": "end" }, bound(bucket.to_s)));
  });
  svg.append(s("line", { x1: 0, x2: WIDTH, y1: BASE + 0.5, y2: BASE + 0.5 }), s("text", { x: 0, y: 12 }, words));
  return svg;
}
