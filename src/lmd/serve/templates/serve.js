"use strict";
(() => {
  const { models, limits } = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const BATCH = Math.min(8, limits.files);
  let files = [];
  let answers = [];      // answers[file][model]: {answer} or {problem}
  let explained = [];    // explained[file][model]
  let chosen = 0;
  let round = 0;         // answers of an earlier round are ignored

  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const percent = (share) => {
    const value = 100 * share;
    return (value > 0 && value < 0.1 ? "< 0.1" : value.toFixed(1)) + "\u202f%";
  };
  const say = (text) => { $("status").textContent = text; };
  const complain = (text) => { $("problem").textContent = text; };

  // What is asked for.

  const classes = [...new Set(models.flatMap((model) => model.classes.map((each) => each.name)))];
  const share = Math.round(10000 / classes.length) / 100;
  for (const [i, name] of classes.entries()) {
    const label = make("label", name + " ", { for: "own-" + i });
    label.append(make("input", null, {
      id: "own-" + i, type: "number", min: 0, max: 100, step: "any", inputmode: "decimal",
      value: i ? share : +(100 - share * (classes.length - 1)).toFixed(2), "aria-describedby": "own-sum",
    }));
    $("own").append(label);
  }
  const ownShare = (name) => Number($("own-" + classes.indexOf(name)).value) / 100;
  const prevalence = () => document.querySelector('input[name="prevalence"]:checked').value;

  function options(model) {
    const wanted = {};
    const mix = prevalence();
    if (mix === "own") {
      // Another model may have other classes: the shares of its own sum to 1.
      const sum = model.classes.reduce((total, each) => total + ownShare(each.name), 0);
      wanted.prevalence = Object.fromEntries(model.classes.map((each) => [each.name, sum ? ownShare(each.name) / sum : 1 / model.classes.length]));
    } else if (mix) {
      wanted.prevalence = mix;
    }
    const coverage = $("coverage").value;
    if (coverage && model.coverage) {
      wanted.coverage = Number(coverage);
      if ($("refer").value) wanted.refer_above = Number($("refer").value);
    }
    return wanted;
  }

  function showOptions() {
    const own = prevalence() === "own";
    $("own").hidden = $("own-sum").hidden = !own;
    $("refer").disabled = !$("coverage").value;
    const total = classes.reduce((sum, name) => sum + 100 * ownShare(name), 0);
    const right = Math.abs(total - 100) < 0.1;
    $("own-sum").textContent = "Per cent. The sum is " + +total.toFixed(2) + (right ? "." : " and must be 100.");
    return !own || (right && classes.every((name) => ownShare(name) >= 0));
  }

  // Requests.

  async function post(model, route, form, tries = 5) {
    let response;
    try {
      response = await fetch("/api/models/" + encodeURIComponent(model.name) + "/" + route, { method: "POST", body: form });
    } catch {
      throw new Error("The server does not answer.");
    }
    const body = await response.json().catch(() => ({ detail: "The server gave no answer." }));
    if (response.status === 503 && tries > 1) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      await new Promise((done) => setTimeout(done, 1000 * seconds));
      return post(model, route, form, tries - 1);
    }
    if (!response.ok) throw new Error(body.detail || body.title || "The server refused the request.");
    return body;
  }

  function formOf(field, some, wanted) {
    const form = new FormData();
    for (const file of some) form.append(field, file, file.name || "image");
    if (wanted) form.append("options", JSON.stringify(wanted));
    return form;
  }

  async function predict(m, from, to, own) {
    const model = models[m];
    const wanted = { ...options(model), picture: files.length === 1 };
    let rows;
    try {
      rows = (await post(model, "batch", formOf("images", files.slice(from, to), wanted))).rows;
    } catch (error) {
      rows = files.slice(from, to).map(() => ({ problem: { detail: error.message } }));
    }
    if (own !== round) return;
    rows.forEach((row, i) => { answers[from + i][m] = row; });
  }

  function parts() {
    const found = [];
    for (let from = 0; from < files.length;) {
      let to = from, bytes = 0;
      while (to < files.length && to - from < BATCH && (to === from || bytes + files[to].size < 0.9 * limits.bytes)) {
        bytes += files[to].size;
        to += 1;
      }
      found.push([from, to]);
      from = to;
    }
    return found;
  }

  async function ask() {
    if (!files.length) return;
    if (!showOptions()) { complain("The own numbers must not be negative and must have the sum 100 %."); return; }
    complain("");
    const own = ++round;
    const pictures = answers.map((row) => row.map((each) => each.answer && each.answer.picture));
    answers = files.map(() => models.map(() => ({})));
    for (const [from, to] of parts()) {
      say(files.length === 1 ? "Predicting…" : "Predicting: " + from + " of " + files.length + " images");
      await Promise.all(models.map((_, m) => predict(m, from, to, own)));
      if (own !== round) return;
      pictures.forEach((row, i) => row.forEach((picture, m) => {
        const answer = answers[i][m].answer;
        if (answer && !answer.picture) answer.picture = picture;
      }));
      show();
    }
    say(summary());
    explain(chosen);
  }

  async function explain(i) {
    const own = round;
    await Promise.all(models.map(async (model, m) => {
      if (!answers[i] || !answers[i][m].answer || explained[i][m]) return;
      try {
        if (model.explanations) {
          explained[i][m] = await post(model, "explain", formOf("image", [files[i]]));
        } else if (!answers[i][m].answer.picture) {
          const shown = await post(model, "predict", formOf("image", [files[i]], { picture: true }));
          if (own !== round) return;
          answers[i][m].answer.picture = shown.picture;
        }
      } catch (error) {
        if (own === round) complain(model.name + ": " + error.message);
      }
      if (own === round && i === chosen) showCard(m);
    }));
  }

  function summary() {
    if (files.length > 1) {
      const bad = answers.filter((row) => row.every((each) => !each.answer)).length;
      return files.length + " images" + (bad ? ", of which " + bad + " could not be read." : " predicted.");
    }
    return models.map((model, m) => {
      const { answer, problem } = answers[0][m];
      if (!answer) return model.name + ": " + (problem ? problem.detail : "no answer");
      const flags = (answer.refer ? ", refer to a person" : "") + (answer.unlike_training ? ", unlike the training images" : "");
      return model.name + ": " + answer.predicted + ", " + percent(answer.probability) + flags;
    }).join("; ");
  }

  // Results.

  function show() {
    $("many").hidden = files.length < 2;
    $("one").hidden = !files.length;
    if (files.length > 1) showTable();
    $("one-title").textContent = files.length ? files[chosen].name || "Pasted image" : "";
    $("cards").classList.toggle("alone", models.length === 1);
    $("cards").replaceChildren(...models.map((_, m) => card(m)));
  }

  function showCard(m) {
    const old = $("cards").children[m];
    if (old) old.replaceWith(card(m));
  }

  function card(m) {
    const model = models[m];
    const { answer, problem } = answers[chosen] ? answers[chosen][m] : {};
    const box = make("article", null, { class: "card", "aria-label": "Answer of " + model.name });
    if (models.length > 1) box.append(make("h3", model.name));
    if (problem) box.append(make("p", problem.detail, { class: "problem" }));
    if (!answer) return box;
    const inside = make("div", null, { class: "inside" });
    const left = make("div"), right = make("div");
    left.append(make("p", "Predicted class", { class: "soft small" }), make("p", answer.predicted, { class: "big" }));
    if (answer.refer) left.append(make("p", "Refer to a person: " + why(answer), { class: "flag" }));
    if (answer.unlike_training) left.append(make("p", "Unlike the training images: do not rely on this answer.", { class: "flag" }));
    left.append(bars(answer));
    if (answer.set) {
      const percentage = $("coverage").selectedOptions[0].textContent;
      left.append(make("p", "Prediction set, coverage " + percentage + ": " + (answer.set.join(", ") || "no class")));
    } else if ($("coverage").value && !model.coverage) {
      left.append(make("p", "This model has no validation images, so it has no prediction sets.", { class: "soft" }));
    }
    right.append(...pictures(m, answer));
    inside.append(left, right);
    box.append(inside);
    return box;
  }

  function why(answer) {
    if (!answer.set.length) return "no class fits.";
    return answer.set.length + " classes are possible.";
  }

  function bars(answer) {
    const list = make("ul", null, { class: "bars", "aria-label": "Probabilities" });
    for (const [name, p] of Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1])) {
      const item = make("li");
      const track = make("span", null, { class: "track", "aria-hidden": "true" });
      const fill = make("span");
      fill.style.width = 100 * p + "%";
      track.append(fill);
      item.append(make("span", name, { class: "name" + (name === answer.predicted ? " first" : "") }), make("span", percent(p), { class: "share" }), track);
      list.append(item);
    }
    return list;
  }

  function pictures(m, answer) {
    const found = explained[chosen][m];
    const picture = found ? found.picture : answer.picture;
    if (!picture) return [];
    const stage = make("div", null, { class: "stage" });
    stage.append(make("img", null, { src: picture, alt: "The image" }));
    if (!found && !models[m].explanations) {
      const why = models[m].engine === "torch" ? "An average of several models has no heat maps: serve the folder of one of its folds to see them." : "An ONNX file has no heat maps: serve its run folder to see them.";
      return [stage, make("p", why, { class: "soft small" })];
    }
    if (!found) return [stage];
    const overlay = make("img", null, { alt: "" });
    const choose = (heat) => {
      overlay.remove();
      if (!heat) return;
      overlay.src = heat.heat;
      overlay.alt = "Evidence for " + heat.name + ", most of it at " + Math.round(100 * heat.peak[0]) + " % from the left and " + Math.round(100 * heat.peak[1]) + " % from the top";
      stage.append(overlay);
    };
    const group = make("fieldset");
    group.append(make("legend", "Heat map: evidence for"));
    for (const [i, heat] of [...found.classes, null].entries()) {
      const label = make("label");
      const radio = make("input", null, { type: "radio", name: "heat-" + m });
      radio.checked = i === 0;
      radio.addEventListener("change", () => choose(heat));
      label.append(radio, heat ? heat.name : "none");
      group.append(label);
    }
    choose(found.classes[0]);
    const key = make("p", "Little ", { class: "soft small" });
    key.append(make("span", null, { class: "scale", role: "img", "aria-label": "from dark violet to yellow" }), " much evidence. It shows what the model uses, not where a disease is.");
    return [group, stage, key, ...cases(found)];
  }

  function cases(found) {
    if (!found.neighbours) return [];
    const table = make("table");
    table.append(make("caption", "Similar training cases", { class: "hidden" }));
    const head = make("tr");
    head.append(make("th", "Class", { scope: "col" }), make("th", "Distance", { scope: "col", class: "number" }), make("th", "Number", { scope: "col", class: "number" }));
    const top = make("thead"), body = make("tbody");
    top.append(head);
    for (const each of found.neighbours) {
      const row = make("tr");
      row.append(make("th", each.label, { scope: "row" }), make("td", each.distance.toFixed(2), { class: "number" }), make("td", each.number, { class: "number" }));
      body.append(row);
    }
    table.append(top, body);
    return [make("h3", "Similar training cases"), table];
  }

  function showTable() {
    const head = make("tr");
    head.append(make("th", "Image", { scope: "col" }));
    for (const model of models) {
      const of = models.length > 1 ? model.name + ": " : "";
      head.append(make("th", of + "class", { scope: "col" }), make("th", "Probability", { scope: "col", class: "number" }), make("th", "Remarks", { scope: "col" }));
    }
    $("table").tHead.replaceChildren(head);
    const focused = document.activeElement && document.activeElement.dataset.row;
    $("table").tBodies[0].replaceChildren(...files.map((file, i) => {
      const row = make("tr", null, i === chosen ? { class: "chosen" } : {});
      const cell = make("td");
      const button = make("button", file.name || "image", { type: "button", "data-row": i, "aria-pressed": String(i === chosen) });
      button.addEventListener("click", () => { chosen = i; show(); explain(i); });
      cell.append(button);
      row.append(cell);
      models.forEach((_, m) => {
        const { answer, problem } = answers[i][m];
        if (problem) {
          row.append(make("td", problem.detail, { class: "problem", colspan: 3 }));
          return;
        }
        row.append(
          make("td", answer ? answer.predicted : ""),
          make("td", answer ? percent(answer.probability) : "", { class: "number" }),
          make("td", answer ? remarks(answer) : "…"),
        );
      });
      return row;
    }));
    if (focused !== undefined && focused !== null) {
      const again = document.querySelector('[data-row="' + focused + '"]');
      if (again) again.focus();
    }
  }

  function remarks(answer) {
    return [
      answer.refer ? "refer" : "",
      answer.unlike_training ? "unlike training" : "",
      answer.set ? "set: " + (answer.set.join(", ") || "empty") : "",
    ].filter(Boolean).join("; ");
  }

  function csv() {
    const cell = (value) => {
      let text = value === null || value === undefined ? "" : String(value);
      if (/^[=+\-@\t]/.test(text) && Number.isNaN(Number(text))) text = "'" + text;  // no formula in a spreadsheet
      return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    const lines = [["image", "model", "predicted", "probability", "set", "set_size", "refer", "unlike_training", "problem", ...classes.map((name) => "p:" + name)]];
    files.forEach((file, i) => models.forEach((model, m) => {
      const { answer, problem } = answers[i][m];
      const a = answer || {};
      const p = a.probabilities || {};
      lines.push([
        file.name, model.name, a.predicted, answer ? a.probability.toFixed(6) : "",
        a.set ? a.set.join("|") : "", a.set ? a.set.length : "",
        a.refer === null || a.refer === undefined ? "" : a.refer ? "yes" : "no", a.unlike_training, problem ? problem.detail : "",
        ...classes.map((name) => (name in p ? p[name].toFixed(6) : "")),
      ]);
    }));
    return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
  }

  function download() {
    const link = make("a", null, { download: "predictions.csv", href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // What the user does.

  function take(list) {
    const found = [...list];
    if (!found.length) return;
    round += 1;  // answers for other images that are on their way are not for these
    files = found;
    answers = files.map(() => models.map(() => ({})));
    explained = files.map(() => models.map(() => null));
    chosen = 0;
    show();
    ask();
  }

  let timer = 0;
  $("options").addEventListener("submit", (event) => event.preventDefault());
  $("options").addEventListener("input", () => {
    showOptions();
    clearTimeout(timer);
    timer = setTimeout(ask, 300);
  });
  $("files").addEventListener("change", () => { take($("files").files); $("files").value = ""; });
  $("csv").addEventListener("click", download);
  document.addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => take(event.clipboardData.files));
  showOptions();
})();
