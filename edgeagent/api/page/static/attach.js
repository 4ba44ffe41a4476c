// Images and sounds that are sent with a message: chosen, dropped, pasted, or taken with the camera.

import { button, h, replace } from "./dom.js";

const byId = (id) => document.getElementById(id);

const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/x-flac": "flac" };
// Other images, and larger ones, are written as a JPEG, which each model reads. No model sees more than some 2,000 pixels.
const KEPT = new Set(["image/png", "image/jpeg", "image/gif"]);
const MAX_KEPT_BYTES = 1 << 20;
const MAX_SIDE = 2048;
const MAX_CHARS = 14 << 20; // of all together; a frame of the WebSocket has 16 MiB

export class Attachments {
  // `tell` shows a text to everybody, `announce` to screen readers. `changed` is called after a change.
  constructor({ tell, announce, changed }) {
    this.tell = tell;
    this.announce = announce;
    this.changed = changed;
    this.entries = []; // {name, part}
    this.numReading = 0; // calls of add that have not ended
    byId("attach").addEventListener("click", () => byId("attach-file").click());
    byId("attach-file").addEventListener("change", ({ target }) => {
      this.add([...target.files]);
      target.value = "";
    });
    byId("message").addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      // A copied table is a text and a picture of it.
      if (!files.length || types.includes("text/plain")) return;
      event.preventDefault();
      this.add([...files]);
    });
    // A file that is dropped beside the field would replace the page.
    addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      if (!byId("chat").hidden) this.add([...event.dataTransfer.files]);
    });
    // Browsers give the camera only to pages over TLS and to those of this machine.
    byId("camera").hidden = !(isSecureContext && navigator.mediaDevices?.getUserMedia);
    byId("camera").addEventListener("click", () => this.shoot());
  }

  get parts() {
    return this.entries.map((entry) => entry.part);
  }

  clear() {
    this.entries = [];
    this.draw();
  }

  // A message that is sent meanwhile would go without these files.
  get isReading() {
    return this.numReading > 0;
  }

  async add(files) {
    this.numReading += 1;
    for (const file of files) {
      const name = file.name || "image";
      try {
        const part = await partOf(file);
        const numChars = [...this.parts, part].reduce((sum, each) => sum + contentOf(each).length, 0);
        if (numChars > MAX_CHARS) throw new Error("is too large to be sent with the others");
        this.entries.push({ name, part });
        this.announce(`${name} is attached.`);
      } catch (error) {
        this.tell(`${name} ${error.message}`);
      }
    }
    this.numReading -= 1;
    this.draw();
    this.changed();
  }

  async shoot() {
    byId("camera").disabled = true;
    try {
      const photo = await takePhoto();
      if (photo) await this.add([photo]);
    } catch (error) {
      this.tell(`The camera cannot be used: ${error.message}`);
    }
    byId("camera").disabled = false;
    byId("message").focus();
  }

  draw() {
    byId("attached").hidden = this.entries.length === 0;
    const remove = (entry) => () => {
      this.entries = this.entries.filter((each) => each !== entry);
      this.draw();
      this.changed();
      byId("message").focus();
    };
    const drawn = this.entries.map((entry) =>
      h("li", {}, drawnPart(entry.part, entry.name), button("×", remove(entry), { class: "quiet", "aria-label": `Remove ${entry.name}` })),
    );
    replace(byId("attached"), ...drawn);
  }
}

function contentOf(part) {
  return part.image_url ?? part.input_audio.data;
}

// Returns the element for an image or a sound of a message; null for another part, and for what is not in the message.
export function drawnPart(part, name = "") {
  if (part.type === "input_audio") return h("span", { class: "sound" }, name || `sound (${part.input_audio?.format})`);
  const isHere = part.type === "input_image" && /^data:image\/(png|jpeg|gif|webp|bmp);base64,/.test(part.image_url);
  return isHere ? h("img", { src: part.image_url, alt: name || "Attached image" }) : null;
}

async function partOf(file) {
  const format = SOUNDS[file.type];
  if (format) {
    const data = (await urlOf(file)).split(",")[1];
    return { type: "input_audio", input_audio: { data, format } };
  }
  if (!file.type.startsWith("image/")) throw new Error("is neither an image nor a WAV, MP3 or FLAC.");
  const isKept = KEPT.has(file.type) && file.size <= MAX_KEPT_BYTES;
  return { type: "input_image", image_url: await urlOf(isKept ? file : await smaller(file)), detail: "auto" };
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("cannot be read."));
    reader.readAsDataURL(blob);
  });
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("is no image that this browser can read.");
  });
  return pictureOf(bitmap, bitmap.width, bitmap.height);
}

// Returns a JPEG of an image, or of what a video shows.
function pictureOf(source, width, height) {
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = h("canvas", { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // behind what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("cannot be read."))), "image/jpeg", 0.9);
  });
}

// Shows the camera; returns a photo, or null if the user takes none.
async function takePhoto() {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  const video = h("video", { autoplay: true, playsinline: true, "aria-label": "What the camera sees" });
  video.srcObject = stream;
  let photo = null;
  const take = async () => {
    const blob = await pictureOf(video, video.videoWidth, video.videoHeight);
    photo = new File([blob], "photo.jpg", { type: blob.type });
    dialog.close();
  };
  const taking = button("Take photo", take, { disabled: true });
  video.addEventListener("loadeddata", () => (taking.disabled = false));
  const row = h("div", { class: "row" }, taking, button("Cancel", () => dialog.close(), { class: "quiet" }));
  const dialog = h("dialog", { class: "photo", "aria-label": "Take a photo" }, video, row);
  document.body.append(dialog);
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve));
  for (const track of stream.getTracks()) track.stop();
  dialog.remove();
  return photo;
}
