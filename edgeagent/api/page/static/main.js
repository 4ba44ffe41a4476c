// Starts the page: the way in, the connection, and its two views.

import { Board } from "./board.js";
import { Chat } from "./chat.js";
import { enter, isTokenKey } from "./session.js";
import { Socket } from "./socket.js";

const byId = (id) => document.getElementById(id);
const socket = new Socket((state) => {
  showState(state);
  if (state === "open") chat.connected();
});
const chat = new Chat(socket);
const board = new Board(byId("board"));
let why = ""; // the link in the address was refused

function showState(state) {
  const isLocked = state === "locked";
  byId("entry").hidden = !isLocked;
  byId("views").hidden = isLocked;
  byId("entry-why").textContent = why;
  byId("entry-why").hidden = !why;
  const letIn = why && "The link does not work any more, but this browser is already let in.";
  const said = { offline: "The daemon does not answer. This page goes on by itself when it is back.", open: letIn };
  byId("offline").textContent = said[state] ?? "";
  byId("offline").hidden = !said[state];
  showView(isLocked ? "entry" : location.hash === "#board" ? "board" : "chat");
}

function showView(view) {
  byId("chat").hidden = view !== "chat";
  byId("board").hidden = view !== "board";
  byId("list-toggle").hidden = view !== "chat";
  for (const name of ["chat", "board"]) {
    if (name === view) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
  }
  board.show(view === "board");
}

// A link that was opened in this tab, or a view that was chosen.
async function arrive() {
  why = "";
  try {
    if (await enter()) socket.restart();
  } catch (error) {
    why = error.message;
  }
  if (socket.state === "connecting") socket.connect();
  else showState(socket.state);
}

byId("to-chat").addEventListener("click", () => (location.hash = ""));
byId("to-board").addEventListener("click", () => (location.hash = "board"));
addEventListener("hashchange", arrive);
// Other windows and phones may have added conversations meanwhile.
document.addEventListener("visibilitychange", () => !document.hidden && socket.state === "open" && chat.list());
// Another tab got a token, or cleared the storage.
addEventListener("storage", ({ key }) => isTokenKey(key) && socket.restart());
arrive();
