"use strict";
// Labels of rows: kept in the browser, and handed out as the table that --labels reads.
const sheet = JSON.parse(document.getElementById("rows").textContent);
const rows = sheet.rows;
const KEPT = "qaeval labels " + sheet.key;
const NAMES = { 1: "good", 0: "bad", "": "skipped" };
// What was said, in order: [row, "1", "0" or ""].
let said = [];
let isKept = true;

function element(name, content, attributes) {
  const made = document.createElement(name);
  Object.entries(attributes || {}).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...[content].flat());
  return made;
}

function keep() {
  try {
    localStorage.setItem(KEPT, JSON.stringify(said));
    isKept = localStorage.getItem(KEPT) !== null;
  } catch (error) {
    isKept = false; // Private windows and some settings forbid it: the page says so.
  }
}

function readKept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) || "[]");
    said = found.filter(([row, label]) => row in rows && label in NAMES);
  } catch (error) {
    said = [];
  }
}

function labels() {
  return new Map(said);
}

function current() {
  const done = labels();
  return rows.findIndex((_, row) => !done.has(row));
}

function table() {
  const done = labels();
  const quoted = (text) => '"' + text.replaceAll('"', '""') + '"';
  // Rows not reached yet are left out: those before them are a smaller sheet.
  const lines = rows.flatMap((own, row) =>
    done.has(row) ? [quoted(own.id) + "," + quoted(done.get(row))] : []);
  return "\ufeff" + ['"id","good"', ...lines, ""].join("\n");
}

function show() {
  const row = current();
  const counts = { 1: 0, 0: 0, "": 0 };
  labels().forEach((label) => { counts[label] += 1; });
  const n = counts[1] + counts[0] + counts[""];
  document.getElementById("count").textContent =
    `${n} of ${rows.length}: ${counts[1]} good, ${counts[0]} bad, ${counts[""]} skipped`;
  document.getElementById("bar").value = n;
  document.getElementById("lost").hidden = isKept;
  document.getElementById("undo").disabled = said.length === 0;
  for (const id of ["good", "bad", "skip"]) document.getElementById(id).disabled = row < 0;
  const card = document.getElementById("row");
  if (row < 0) {
    card.replaceChildren(element("p", "All rows are through: download their labels."));
    return;
  }
  card.replaceChildren(...rows[row].texts.flatMap(([name, pieces]) => [
    element("h3", name),
    element("p", pieces.map((piece, i) => (i % 2 ? element("mark", piece) : piece)), {
      class: "text", dir: "auto",
    }),
  ]));
}

function label(value) {
  const row = current();
  if (row < 0) return;
  said.push([row, value]);
  keep();
  show();
}

function undo() {
  said.pop();
  keep();
  show();
}

function download() {
  const link = element("a", "", { download: sheet.labels });
  link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
  link.click(); // Some browsers read what it names later: it stays until the page is closed.
}

const ACTIONS = {
  good: () => label("1"), bad: () => label("0"), skip: () => label(""), undo, download,
};
const KEYS = { 1: "good", 0: "bad", s: "skip", u: "undo" };
Object.entries(ACTIONS).forEach(([id, action]) => {
  document.getElementById(id).addEventListener("click", action);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const id = KEYS[event.key.toLowerCase()];
  if (id !== undefined) ACTIONS[id]();
});
readKept();
keep();
show();
