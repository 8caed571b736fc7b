// The page's state machine: which state it is in and what leads out of it. Owns no pixels, no sockets, no key codes.
//
//   choose -> encoding -> loading -> playing -> choose | over | lost
//   choose -> drawing -> drawn -> encoding           drawing -> choose | refused | lost
//   loading, playing -> held (the connection broke) -> playing | late     any -> choose
//   encoding, loading -> busy (retries) | refused | lost                  unsupported stays

import { Comeback } from "./comeback.js";
import { tell, urlOf } from "./drawing.js";
import { whyUnsupported } from "./h264.js";
import { Keys } from "./keys.js";
import { Models } from "./models.js";
import { Options } from "./options.js";
import { drawnPicture, Gallery, listPictures } from "./pictures.js";
import { Player } from "./player.js";
import { Prompt } from "./prompt.js";
import { Readout } from "./readout.js";
import { Stage } from "./stage.js";
import { Pad } from "./touch.js";
import * as server from "./server.js";

const RETRY_S = 5;
const KEEP_ALIVE_MS = 250;
// A game that is silent for longer has lost its connection: a slow server may need a while, a network that is or was
// gone explains it sooner.
const SILENCE_MS = { usual: 15000, network: 2000 };
const WALK = ["w", "a", "s", "d"];
const BUSY_CLOSE = 1013;
const REFUSED = 1008;
const BACK_S = 5;
const PROMPT_HEIGHT = 56; // of the form for words, in CSS pixels
const UNREACHED = "The server can’t be reached";
const CLOSED = { 1008: "The server ended the game", 1011: "The world came to a stop" };

const at = (id) => document.getElementById(id);
const stage = new Stage(at("stage"), {
  preview: at("preview"), screen: at("screen"), title: at("title"), text: at("text"), progress: at("progress"),
  actions: at("actions"), announce: at("announce"), notice: at("notice"),
});
const readout = new Readout({ rate: at("read-rate"), latency: at("read-latency"), left: at("read-left") });
const keys = new Keys(sendKeys);
const pad = new Pad(at("pad"), (held) => keys.touch(held));
const comeback = new Comeback({
  attempt: () => player.comeBack(),
  tick: (seconds) => stage.words(keptFor(seconds)),
  late: () => late("no connection in time"),
});
const models = new Models({ row: at("model"), select: at("model-id"), hint: at("model-hint") }, showOptions);
const options = new Options(
  { button: at("more"), panel: at("panel"), live: at("live-knobs"), start: at("start-knobs"), reset: at("reset") },
  { opened: refresh, rates: () => tellKeys(false), done: backToStage },
);
const gallery = new Gallery(at("pictures"), at("file"), { choose: start, look: lookAt });
const prompt = new Prompt({
  form: at("prompt"), words: at("words"), seed: at("seed"), dice: at("dice"), size: at("picture-size"),
  hint: at("prompt-hint"),
}, draw);

let state = "choose";
let picture = null; // the last one chosen
let shelf = []; // the server's
let player = null;
let hello = null; // the latest of this page's games
let focus = null; // what the latest start did with the focus
let attempt = null; // AbortController of the start under way
let retryTimer = 0;
let partials = 0; // pictures on the way to the one that is drawn
let lastError = null;
let overMessage = null;

function enter(next, scene = {}) {
  state = next;
  const live = ["encoding", "loading", "playing", "held"].includes(next);
  at("leave").disabled = !live && next !== "busy" && next !== "drawing";
  at("back").hidden = next !== "playing" || !(hello?.rewind_s >= BACK_S);
  stage.scene({ state: next, title: "", live, ...scene });
  pad.show(live);
  // A key held early works from the first picture on.
  if (["loading", "playing", "held"].includes(next)) keys.enable();
  else keys.disable();
}

const again = (label) => ({ label, primary: true, run: () => start(picture) });
const another = (primary = false) => ({ label: "Choose another", primary, run: choose });

function choose() {
  stop();
  stage.showScreen(false);
  const shown = picture ?? shelf[0] ?? null;
  stage.preview(shown);
  options.showPicture(shown);
  const play = { label: "Play", primary: true, run: () => start(picture ?? shelf[0]) };
  const upload = { label: "Use a picture", primary: true, run: () => gallery.openFile() };
  enter("choose", {
    title: at("prompt").hidden ? "Choose a picture" : "Choose a picture or describe a place",
    text: "It becomes the first moment of a world that answers your keys.",
    actions: [shown ? play : upload],
  });
}

function lookAt(looked) {
  if (state === "choose") stage.preview(looked ?? picture ?? shelf[0] ?? null);
}

function stop() {
  clearInterval(retryTimer);
  comeback.end();
  attempt?.abort();
  attempt = null;
  player?.close();
  player = null;
  stage.notice("");
  readout.reset();
}

function pick(chosen) {
  if (picture?.own && picture !== chosen) URL.revokeObjectURL(picture.url);
  picture = chosen;
}

/** Starts a world. A retry leaves the words of the busy state up until it succeeds. */
async function start(chosen, { retry = false } = {}) {
  if (state === "unsupported") return;
  stop();
  pick(chosen);
  overMessage = null;
  attempt = new AbortController();
  const { signal } = attempt;
  if (retry) stage.words("Trying again…");
  else show(chosen);
  try {
    const choices = { ...(models.picked ? { model_id: models.picked } : {}), ...options.fields };
    const answer = await server.sendPicture(chosen, choices, signal);
    useProfile(answer.profile);
    focus = answer.focus;
    await server.reserve(signal);
    refresh();
  } catch (error) {
    if (error.status === 423) await refresh(); // who plays which model decides the words
    if (!signal.aborted) failed(error);
    return;
  }
  if (!signal.aborted) play();
}

function show(chosen) {
  gallery.mark(chosen);
  stage.showScreen(false);
  stage.preview(chosen);
  options.showPicture(chosen);
  enter("encoding", models.switches
    ? { title: `Loading ${models.id}`, text: "The server changes its model. That takes a moment." }
    : chosen.id ? { title: "Stepping inside", text: "The world begins where your picture was drawn." }
    : { title: "Reading the picture", text: "The model takes a first look at it." });
  at("stage").focus({ preventScroll: true }); // space is a key of the world, not a click on the last button
}

/** Has the server draw a place from words, which may then be stepped into. @param {import("./prompt.js").Order} order */
async function draw(order) {
  if (state === "unsupported") return;
  stop();
  attempt = new AbortController();
  const { signal } = attempt;
  stage.showScreen(false);
  stage.preview(null);
  enter("drawing", {
    title: "Drawing your place", text: "The server takes up your words.", focus: true,
    actions: [{ label: "Cancel", run: choose }],
  });
  at("stage").scrollIntoView({ block: "nearest" });
  const began = performance.now();
  partials = 0;
  try {
    const done = await server.draw(order, (event) => {
      if (signal.aborted) return;
      tell(stage, event);
      partials += event.b64_json ? 1 : 0;
    }, signal);
    if (!signal.aborted) drawn(order, done, (performance.now() - began) / 1000);
  } catch (error) {
    if (!signal.aborted) notDrawn(error, order);
  }
}

function drawn({ prompt: words, seed }, { id, b64_json: data, output_format: format, size }, seconds) {
  const more = size.split("x").map((pixels, axis) => Number(pixels) - [stage.size.width, stage.size.height][axis]);
  const larger = more.every((pixels) => pixels >= 0) ? " The world begins at its middle." : "";
  const cut = more.some((pixels) => pixels !== 0) ? larger || " The world scales and cuts it to its own size." : "";
  attempt = null;
  pick(drawnPicture(words, id, urlOf(data, format)));
  gallery.mark(picture);
  stage.preview(picture);
  options.showPicture(picture);
  enter("drawn", {
    title: words, text: `Drawn in ${seconds.toFixed(1)}\u00a0s from seed ${seed}.${cut}`, focus: true,
    actions: [
      { label: "Step inside", primary: true, run: () => start(picture) },
      { label: "Draw another", run: () => prompt.again() },
    ],
  });
}

function notDrawn(error, order) {
  lastError = error.message;
  const retry = { label: "Try again", run: () => draw(order) };
  const change = { label: "Change the words", run: () => (choose(), prompt.focus()) };
  if (!(error instanceof server.Refusal)) {
    const actions = [retry, change].map(onlyFirstPrimary);
    enter("lost", { title: UNREACHED, text: "Check that it is running. Your words are kept.", loud: true, actions });
    return;
  }
  const titles = { 413: "This picture is too large", 429: "Many pictures wait already" };
  const words = error.status >= 400 && error.status < 500 && error.status !== 429;
  enter("refused", {
    title: titles[error.status] ?? (words ? "This can’t be drawn" : "The picture could not be drawn"),
    text: sentence(error.message), loud: true, actions: (words ? [change, retry] : [retry, change]).map(onlyFirstPrimary),
  });
}

function failed(error) {
  lastError = error.message;
  if (error.status === 423) return busy();
  if (!(error instanceof server.Refusal)) {
    return lost(UNREACHED, "Check that it is running. Your picture is kept.", "Try again");
  }
  const titles = { 401: "This server needs a ticket", 413: "This picture is too large" };
  enter("refused", {
    title: titles[error.status] ?? (error.status >= 500 ? "The server had a fault" : "This picture can’t be used"),
    text: error.message, loud: true, actions: [another(true), again("Try again")].map(onlyFirstPrimary),
  });
}

const onlyFirstPrimary = (action, index) => ({ ...action, primary: index === 0 });

function play() {
  enter("loading", { title: "Waking the world", text: "The first pictures are on their way." });
  at("stage").focus({ preventScroll: true });
  player = new Player(server.socketUrl, at("screen"), {
    hello: greeted,
    picture: ({ width, height }) => {
      readout.picture();
      if (state !== "playing") firstPicture(width, height);
    },
    latency: (milliseconds) => readout.latency(milliseconds),
    error: ({ message }) => {
      lastError = message;
      stage.notice(message);
    },
    over: ({ message }) => {
      overMessage = message;
    },
    broken,
    missed: () => comeback.missed(),
    closed,
  });
}

function greeted(message, resumed) {
  hello = message;
  stage.setSize(message.width, message.height);
  readout.begin(message.session_limit_s, message.played_s ?? 0);
  if (message.profile) useProfile(message.profile);
  showOptions();
  if (resumed) comeback.end();
  tellKeys(true); // the server starts with nothing held
}

function firstPicture(width, height) {
  stage.setSize(width, height);
  stage.showScreen(true);
  enter("playing", { title: "Playing" });
}

const keptFor = (seconds) => `Your world is kept for ${seconds}\u00a0s.`;

/** The connection is gone and the server keeps the world: the last picture stays up meanwhile. */
function broken() {
  readout.pause();
  stage.notice("");
  lastError = "the connection broke";
  enter("held", { title: "Connection lost, coming back…", text: keptFor(player.withinS) });
  comeback.begin(player.withinS);
}

function late(why) {
  const kept = player.withinS;
  stop();
  lastError = why;
  enter("late", {
    title: "It is too late to go on", loud: true, actions: [again("Play again"), another()],
    text: `The server kept this world for ${kept}\u00a0s after the connection was lost. Your picture is kept.`,
  });
}

function closed({ code, reason, refused }) {
  comeback.end();
  if (refused && code === REFUSED && overMessage === null) return late(reason);
  player = null;
  readout.reset();
  stage.notice("");
  if (overMessage !== null || (code === 1000 && reason)) return over(overMessage ?? reason);
  lastError = reason || `the socket closed with code ${code}`;
  if (code === BUSY_CLOSE) return busy();
  const title = CLOSED[code] ?? "Connection lost";
  return lost(title, `${sentence(reason)} Your picture is kept.`.trim(), "Play again");
}

const sentence = (reason) => reason && `${reason[0].toUpperCase()}${reason.slice(1).replace(/\.$/, "")}.`;

function over(message) {
  enter("over", { title: "That was your time", text: message, loud: true, actions: [again("Play again"), another()] });
}

function lost(title, text, label) {
  enter("lost", { title, text, loud: true, actions: [again(label), another()] });
}

function busy() {
  let seconds = RETRY_S;
  const why = models.switches ? "The model can change when nobody plays." : "Every place is taken.";
  const words = () => `${why} Trying again in ${seconds}\u00a0s.`;
  const retry = () => start(picture, { retry: true });
  if (state === "busy") stage.words(words());
  else {
    const join = { label: `Play ${models.active}`, run: () => (models.keepActive(), start(picture)) };
    enter("busy", {
      title: models.switches ? `Someone is playing ${models.active}` : "Someone else is playing",
      text: words(), loud: true,
      actions: [
        { label: "Try now", primary: true, run: retry }, ...(models.switches ? [join] : []),
        { label: "Cancel", run: choose },
      ],
    });
  }
  clearInterval(retryTimer);
  retryTimer = setInterval(() => {
    seconds -= 1;
    if (seconds <= 0) retry();
    else stage.words(words());
  }, 1000);
}

function sendKeys(pressed) {
  tellKeys(true);
  paintHelp(pressed);
}

function tellKeys(changed) {
  player?.sendKeys(keys.pressed(), options.rates(hello?.fps), changed);
}

/** Every short while: says what is held again, and looks whether the game is still heard. */
function keepAlive() {
  if (player === null) return;
  tellKeys(false);
  breakOffAfter(navigator.onLine ? SILENCE_MS.usual : SILENCE_MS.network);
}

function breakOffAfter(silenceMs) {
  if (state === "playing" && player.silentMs > silenceMs) player.breakOff();
}

function showOptions() {
  const { answer, details } = models;
  if (answer === null || details === null) return;
  options.show({ ...answer, focus: { ...answer.focus, mode: focus?.mode, coverage: focus?.coverage }, hello }, details);
}

/** Asks the server again what it serves. */
async function refresh() {
  try {
    models.show(await server.models());
    showOptions();
  } catch (error) {
    lastError = error.message; // what is on the page stays
  }
}

function useProfile({ controls }) {
  keys.useControls(controls);
  pad.useControls(controls);
  const caps = (...list) => list.map(([label, key]) => `<kbd data-key="${key}">${label}</kbd>`).join(" ");
  const cross = caps(["W", "w"], ["A", "a"], ["S", "s"], ["D", "d"]);
  const lines = [`<span>${cross} ${keys.turns ? "move" : "or arrows: walk"}</span>`];
  if (keys.turns) lines.push(`<span>${caps(["←", "left"], ["→", "right"])} look</span>`);
  if (controls.includes("space")) lines.push(`<span>${caps(["space", "space"])} jump</span>`);
  if (controls.includes("shift")) lines.push(`<span>${caps(["shift", "shift"])} sprint</span>`);
  if (!keys.turns) lines.push("<span><kbd>esc</kbd> leave</span>");
  at("help").innerHTML = lines.join("");
}

function paintHelp(pressed) {
  for (const cap of at("help").querySelectorAll("[data-key]")) cap.classList.toggle("held", pressed[cap.dataset.key]);
}

function goBack() {
  if (at("back").hidden) return;
  stage.notice("");
  player.rewind(BACK_S);
  backToStage();
}

function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else at("theatre").requestFullscreen();
  backToStage();
}

/** Gives the keyboard back to a running world. */
function backToStage() {
  if (state === "playing") at("stage").focus({ preventScroll: true });
}

async function open() {
  useProfile({ controls: WALK });
  at("leave").addEventListener("click", choose);
  at("back").addEventListener("click", goBack);
  at("full").addEventListener("click", toggleFull);
  at("full").hidden = !document.fullscreenEnabled;
  document.addEventListener("fullscreenchange", () => {
    at("full").textContent = document.fullscreenElement ? "Exit full screen" : "Full screen";
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && !event.repeat && !event.target.closest?.("input, textarea, select")) goBack();
    if (event.key !== "Escape" || event.target.closest?.("select")) return; // there it closes the list
    if (!at("leave").disabled && !document.fullscreenElement) choose();
  });
  setInterval(keepAlive, KEEP_ALIVE_MS);
  addEventListener("online", () => {
    breakOffAfter(SILENCE_MS.network);
    comeback.now();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    player?.forgiveSilence();
    comeback.now();
  });
  // A close frame frees the place at once; a page that comes back from the browser's cache starts afresh.
  addEventListener("pagehide", () => player && choose());
  const [why] = await Promise.all([whyUnsupported(), fillShelf()]);
  if (why !== null) return unsupported(why);
  choose();
  const wanted = shelf.find(({ name }) => name === server.autoplay);
  if (wanted) start(wanted);
  else if (server.autoplay) stage.words(`There is no picture called “${server.autoplay}” here. Choose one below.`);
}

async function fillShelf() {
  try {
    const [pictures, { prompt: words }] = await Promise.all([listPictures(), server.page(), refresh()]);
    shelf = pictures;
    if (words !== null) {
      prompt.show(words);
      stage.reserve(PROMPT_HEIGHT);
    }
    const profile = models.details?.profile;
    if (profile) useProfile(profile);
  } catch (error) {
    lastError = error.message; // a picture of one's own still works, and starting says what is wrong
  }
  gallery.show(shelf);
  const first = at("pictures").querySelector("img");
  first?.addEventListener("load", () => stage.setSize(first.naturalWidth, first.naturalHeight), { once: true });
}

function unsupported(why) {
  const words = {
    insecure: "Browsers decode video only on secure pages. Open this page at http://localhost or over https.",
    webcodecs: "It has no WebCodecs. Chrome or Edge 94, Safari 16.4, Firefox 130 on a computer, and newer ones work.",
    h264: "It cannot decode H.264 video. Chrome, Edge, Safari, or a Firefox or Chromium with H.264 works.",
  };
  at("gallery").inert = true;
  stage.preview(shelf[0] ?? null);
  enter("unsupported", { title: "This browser can’t show the world", text: words[why], loud: true });
}

/** A handle for tests and for people with a console. */
window.worldloop = {
  get state() { return state; },
  get framesShown() { return player?.shown ?? 0; },
  get partials() { return partials; },
  get lastError() { return lastError; },
  get pressed() { return keys.pressed(); },
  readout: () => readout.values(),
  debugSend: (text) => player.sendText(text),
};

open();
