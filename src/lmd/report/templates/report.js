"use strict";
// The page is complete without this script, which sorts tables by their headings and saves figures.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[Math.min(column, row.cells.length - 1)]; // a cell may be wide
        return cell.dataset.value ?? cell.textContent;
      };
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        return isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      };
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
    });
  });
}

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor",
];

// A copy of a plot's drawing that looks the same without this page's style sheet, on white.
function standalone(plot) {
  const from = plot.querySelector("svg"), copy = from.cloneNode(true);
  const originals = from.querySelectorAll("*"), copies = copy.querySelectorAll("*");
  document.documentElement.classList.add("saving");
  originals.forEach((original, i) => {
    copies[i].removeAttribute("class");
    if (["title", "desc", "g"].includes(original.tagName)) return;
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[i].setAttribute(name, style.getPropertyValue(name));
  });
  document.documentElement.classList.remove("saving");
  if (!from.hasAttribute("viewBox")) { // as wide as the page shows it
    const box = from.getBoundingClientRect();
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
  }
  const paper = document.createElementNS(copy.namespaceURI, "rect");
  for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", "#fff"]]) paper.setAttribute(name, value);
  copy.prepend(paper);
  return copy;
}

function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The print dialog with a sheet of the figure's size; it saves vectors and embeds the fonts.
function printAlone(plot, name) {
  const drawing = standalone(plot), sheet = document.createElement("div"), size = document.createElement("style");
  const [width, height] = [drawing.getAttribute("width"), drawing.getAttribute("height")].map((each) => Math.ceil(each) + 16);
  const before = document.title;
  size.textContent = `@page { size: ${width}px ${height}px; margin: 8px; }`;
  sheet.id = "sheet";
  sheet.append(drawing);
  document.head.append(size);
  document.body.append(sheet);
  document.documentElement.classList.add("sheet-only");
  document.title = name;
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("sheet-only");
    document.title = before;
    sheet.remove();
    size.remove();
  }, { once: true });
  print();
}

for (const plot of document.querySelectorAll(".plot")) {
  const name = plot.dataset.name.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  const menu = document.createElement("details"), head = document.createElement("summary");
  menu.className = "save";
  head.textContent = "Save";
  head.setAttribute("aria-label", "Save the figure: " + plot.dataset.name);
  menu.append(head);
  const offers = {
    SVG: () => download(name + ".svg", "image/svg+xml", new XMLSerializer().serializeToString(standalone(plot))),
    PDF: () => printAlone(plot, name),
    CSV: () => download(name + ".csv", "text/csv", plot.dataset.csv),
  };
  for (const [kind, act] of Object.entries(offers)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.addEventListener("click", act);
    menu.append(button);
  }
  plot.append(menu);
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not(.save)")) details.open = true;
});
