"use strict";

// One image after another. A label counts once the server has answered that it is on the disk;
// only then does the next image appear. Texts are set as text, never as HTML.

const at = (id) => document.getElementById(id);
const KEYS = {
  ArrowRight: "success", s: "success", ArrowLeft: "failure", f: "failure", " ": "skip",
  z: "undo", Backspace: "undo",
};
const SMALL = 400; // pixels of a side below which an image is scaled up by whole pixels
const AGAIN = 2000; // milliseconds until a broken connection is tried again

const page = {
  state: null, // what the server said last
  busy: true, // while a label is on its way
  ended: false, // whether the summary is shown
  images: new Map(), // number to a promise of its blob's address
  shownAt: 0,
  given: 0, // in this tab, with the time that it took, for the rate
  seconds: 0,
};

class Refused extends Error {
  constructor(status, body) {
    super(body.error || "The program answered " + status + ".");
    this.status = status;
    this.body = body;
  }
}

async function ask(path, body) {
  const options = { credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  let value = {};
  try {
    value = await response.json();
  } catch {
    value = {};
  }
  if (!response.ok) throw new Refused(response.status, value);
  return value;
}

function complain(text) {
  at("problem").textContent = text;
  at("problem").hidden = !text;
  if (text) at("said").textContent = "";
}

const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

// Ask until the program answers: a label that is repeated counts once.
async function insist(path, body) {
  for (;;) {
    try {
      const value = await ask(path, body);
      complain("");
      return value;
    } catch (error) {
      if (error instanceof Refused) throw error;
      complain(
        "There is no connection to vinoreward label. Every label before is safe; this page tries " +
        "again. If you stopped the program, start it again and open the address that it prints: " +
        "it goes on here."
      );
      await pause(AGAIN);
    }
  }
}

function fetched(number) {
  if (!page.images.has(number)) {
    const address = fetch("/image/" + number, { credentials: "same-origin" }).then(
      async (response) => {
        if (!response.ok) throw new Refused(response.status, {});
        return URL.createObjectURL(await response.blob());
      }
    );
    address.catch(() => page.images.delete(number)); // it is tried again when it is needed
    page.images.set(number, address);
  }
  return page.images.get(number);
}

function forget(wanted) {
  for (const [number, address] of page.images) {
    if (wanted.includes(number)) continue;
    page.images.delete(number);
    address.then((url) => URL.revokeObjectURL(url), () => {});
  }
}

function tell() {
  const { done, total, labeller, unreadable } = page.state;
  const rate = page.seconds > 0 ? ", " + Math.round((60 * page.given) / page.seconds) + " a minute" : "";
  const lost = unreadable ? ", " + unreadable + " cannot be read" : "";
  at("progress").textContent = done + " of " + total + " labelled" + rate + lost + " (" + labeller + ")";
  at("bar").max = Math.max(total, 1);
  at("bar").value = done;
  for (const id of ["undo", "takeback"]) at(id).disabled = !page.state.undo;
}

async function show(state) {
  page.state = state;
  tell();
  if (state.image === null) return finish();
  page.ended = false;
  at("end").hidden = true;
  at("work").hidden = false;
  const image = at("image");
  for (;;) {
    try {
      const url = await fetched(state.image);
      image.src = url;
      await image.decode();
      break;
    } catch {
      page.images.delete(state.image);
      await pause(AGAIN / 4);
      const now = await insist("/api/state");
      if (now.image !== state.image) return show(now);
    }
  }
  image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= SMALL);
  image.classList.remove("waiting");
  document.body.dataset.image = state.image;
  page.shownAt = performance.now();
  page.busy = false;
  forget([state.image, ...state.ahead]);
  for (const number of state.ahead) fetched(number).catch(() => {});
}

async function finish() {
  page.busy = true;
  const summary = await insist("/api/summary");
  const { success, failure, skip } = summary.counts;
  const left = page.state.total - page.state.done;
  const lines = [
    success + " successes, " + failure + " failures, " + skip + " skipped; they are in " + summary.file + ".",
    summary.agreement,
  ];
  if (summary.contradictions) {
    lines.push(
      summary.contradictions + (summary.contradictions === 1 ? " image has" : " images have") +
      " contradicting labels and will not be used."
    );
  }
  if (summary.classifier) lines.push(summary.classifier);
  at("title").textContent = left
    ? left + (left === 1 ? " image is left" : " images are left")
    : summary.unlabelled
      ? "This sitting is done; " + summary.unlabelled + " images are left for another"
      : "All images are labelled";
  at("lines").replaceChildren(...lines.map((text) => {
    const line = document.createElement("li");
    line.textContent = text;
    return line;
  }));
  at("next").textContent = summary.next;
  at("back").hidden = !left;
  at("image").classList.remove("waiting");
  at("work").hidden = true;
  at("end").hidden = false;
  at("said").textContent = "";
  delete document.body.dataset.image;
  page.ended = true;
  page.busy = false;
  at("end").focus();
}

// Run one thing at a time, and say in a sentence what goes wrong.
async function once(work) {
  if (page.busy) return;
  page.busy = true;
  try {
    await work();
  } catch (error) {
    at("image").classList.remove("waiting");
    if (!(error instanceof Refused)) throw error;
    if (error.status === 409 && error.body.state) await show(error.body.state);
    else complain(error.message);
  } finally {
    page.busy = false;
  }
}

function label(answer) {
  return once(async () => {
    const seconds = (performance.now() - page.shownAt) / 1000;
    const image = page.state.image;
    at("image").classList.add("waiting");
    const state = await insist("/api/label", { image, label: answer, seconds });
    page.given += 1;
    page.seconds += (performance.now() - page.shownAt) / 1000;
    at("said").textContent = "Labelled: " + answer + ".";
    await show(state);
  });
}

function undo() {
  return once(async () => {
    if (!page.state.undo) return;
    const state = await insist("/api/undo", { done: page.state.done });
    at("said").textContent = "Taken back.";
    await show(state);
  });
}

const stop = () => once(finish);
const back = () => once(() => show(page.state));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const what = KEYS[key];
  if (!what || (page.ended && what !== "undo")) return;
  if (key === " " && event.target.closest("button")) return; // it presses the button
  event.preventDefault();
  if (what === "undo") undo();
  else label(what);
});

// After a click of the mouse or a finger, space means the image again.
document.addEventListener("click", (event) => {
  if (event.detail && document.activeElement instanceof HTMLButtonElement) {
    document.activeElement.blur();
  }
});

for (const answer of ["success", "failure", "skip"]) {
  at(answer).addEventListener("click", () => label(answer));
}
at("undo").addEventListener("click", undo);
at("takeback").addEventListener("click", undo);
at("stop").addEventListener("click", stop);
at("back").addEventListener("click", back);

async function begin() {
  const token = location.hash.slice(1);
  // Out of the address, and so out of the history.
  history.replaceState(null, "", location.pathname);
  try {
    if (token) {
      try {
        await insist("/api/enter", { token });
      } catch (error) {
        // Used before: by this browser, if it has the cookie.
        if (!(error instanceof Refused) || !(await has())) throw error;
      }
    }
    await show(await insist("/api/state"));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    complain(error.message);
  }
}

async function has() {
  try {
    await ask("/api/state");
    return true;
  } catch {
    return false;
  }
}

// A new start of the program, opened in this tab.
addEventListener("hashchange", () => location.reload());

begin();
