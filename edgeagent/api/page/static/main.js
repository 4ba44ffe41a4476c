// Starts the page: the way in, the connection, and its two views.

import { Board } from "./board.js";
import { Chat } from "./chat.js";
import { enter, isTokenKey } from "./session.js";
import { Socket } from "./socket.js";

const byId = (id) => document.getElementById(id);
const socket = new Socket(showState);
const chat = new Chat(socket);
const board = new Board(byId("board"));

function showState(state) {
  const isLocked = state === "locked";
  byId("entry").hidden = !isLocked;
  byId("views").hidden = isLocked;
  byId("offline").hidden = state !== "offline";
  byId("offline").textContent =
    state === "offline" ? "The daemon does not answer. This page goes on by itself when it is back." : "";
  showView(isLocked ? "entry" : location.hash === "#board" ? "board" : "chat");
  if (state === "open") chat.connected();
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
  let why = "";
  try {
    if (await enter()) socket.restart();
  } catch (error) {
    why = error.message;
  }
  byId("entry-why").textContent = why;
  byId("entry-why").hidden = !why;
  if (socket.state === "connecting") socket.connect();
  else if (why && socket.state !== "open") showState("locked");
  else if (socket.state !== "locked") showView(location.hash === "#board" ? "board" : "chat");
}

byId("to-chat").addEventListener("click", () => (location.hash = ""));
byId("to-board").addEventListener("click", () => (location.hash = "board"));
addEventListener("hashchange", arrive);
// Another tab got a token, or cleared the storage.
addEventListener("storage", ({ key }) => isTokenKey(key) && socket.restart());
arrive();
