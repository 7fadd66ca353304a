// The engine in a page or in node, as WebAssembly, without dependencies.
//
//   import { load } from "./lcrbnn.js";
//   const engine = await load("engine.wasm");                      // an address, or the bytes
//   const model = engine.open(await (await fetch("model.bnn")).arrayBuffer());
//   model.shape, model.classes, model.input                        // [h, w, c], names, {top, mean, std, margin}
//   model.kernels                                                  // what computes each node, such as "simd128"
//   const logits = model.run(numbers);                             // Float32Array, [n][h][w][c], normalised
//   const others = model.pixels(bytes);                            // Uint8Array, [n][h][w][c], from 0 to 255
//   model.close();
//
// What the engine refuses is an Error with its sentence.

const MESSAGE = 320; // bytes of a sentence
const BAD_DESCRIPTOR = 8, NOT_THERE = 52; // what WASI calls "no such folder" and "no such function"

// The few calls of an operating system that the C library makes: there are neither files nor variables here.
function system(memory) {
  const view = () => new DataView(memory().buffer);
  return {
    clock_time_get(_id, _precision, at) {
      view().setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
    environ_sizes_get(count, bytes) {
      view().setUint32(count, 0, true);
      view().setUint32(bytes, 0, true);
      return 0;
    },
    environ_get: () => 0,
    fd_prestat_get: () => BAD_DESCRIPTOR,
    proc_exit(code) {
      throw new Error(`the engine ended with code ${code}`);
    },
  };
}

// Compile the engine: from an address (or a Response), or from its bytes.
export async function load(source) {
  const bytes = source instanceof ArrayBuffer || ArrayBuffer.isView(source) ? source : await fetched(source);
  const module = await WebAssembly.compile(bytes);
  let exports;
  const known = system(() => exports.memory);
  const imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module))
    (imports[from] ??= {})[name] = known[name] ?? (() => NOT_THERE);
  exports = (await WebAssembly.instantiate(module, imports)).exports;
  exports._initialize();
  return new Engine(exports);
}

async function fetched(source) {
  const response = await (source instanceof Response ? source : fetch(source));
  if (!response.ok) throw new Error(`${response.url || source} cannot be read: ${response.status}`);
  return response.arrayBuffer();
}

class Engine {
  #exports;

  constructor(exports) {
    this.#exports = exports;
  }

  // Open the bytes of a .bnn file; they are copied. A kernel is "simd128" or "scalar"; without one, the best.
  open(bytes, kernel = "") {
    return new Model(this.#exports, bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes), kernel);
  }
}

class Model {
  #exports;
  #model = 0;

  constructor(exports, bytes, kernel) {
    this.#exports = exports;
    const held = this.#given(bytes);
    const name = this.#given(new TextEncoder().encode(`${kernel}\0`));
    const out = this.#room(4);
    try {
      this.#checked((message) => exports.lcrbnn_open_memory(held, bytes.length, 0, name, out, message, MESSAGE));
      this.#model = this.#words(out, 1)[0];
    } finally {
      exports.free(held);
      exports.free(name);
      exports.free(out);
    }
    const info = this.#room(64);
    exports.lcrbnn_get_info(this.#model, info);
    const [height, width, channels, classes, nodes] = this.#words(info, 5);
    exports.free(info);
    this.shape = [height, width, channels];
    this.classes = Array.from({ length: classes }, (_, i) => this.#text(exports.lcrbnn_class_name(this.#model, i)));
    this.kernels = Array.from({ length: nodes }, (_, i) => this.#text(exports.lcrbnn_node_kernel(this.#model, i)));
    this.input = { margin: 1, ...graph(bytes).input };
  }

  // Logits [n][classes] of images [n][h][w][c], float32, normalised as `input` says.
  run(numbers) {
    return this.#answer(numbers instanceof Float32Array ? numbers : new Float32Array(numbers), this.#exports.lcrbnn_run);
  }

  // The same of pictures of 8 bits, 0 to 255, which the engine scales to 0 to `input.top` and normalises.
  pixels(bytes) {
    return this.#answer(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes), this.#exports.lcrbnn_run_pixels);
  }

  // Free its memory; it cannot be used any more.
  close() {
    this.#exports.lcrbnn_close(this.#model);
    this.#model = 0;
  }

  #answer(images, run) {
    if (!this.#model) throw new Error("this model is closed");
    const one = this.shape[0] * this.shape[1] * this.shape[2];
    const n = images.length / one;
    if (!Number.isInteger(n) || n === 0)
      throw new Error(`images must be a multiple of ${one} numbers (${this.shape.join(" x ")}); got ${images.length}`);
    const count = n * this.classes.length;
    const held = this.#given(new Uint8Array(images.buffer, images.byteOffset, images.byteLength));
    const out = this.#room(count * 4);
    try {
      this.#checked((message) => run(this.#model, held, n, out, 1, message, MESSAGE));
      return new Float32Array(this.#exports.memory.buffer.slice(out, out + count * 4));
    } finally {
      this.#exports.free(held);
      this.#exports.free(out);
    }
  }

  #checked(call) {
    const message = this.#room(MESSAGE);
    try {
      if (call(message) !== 0) throw new Error(this.#text(message));
    } finally {
      this.#exports.free(message);
    }
  }

  #room(bytes) {
    const at = this.#exports.malloc(Math.max(bytes, 1));
    if (!at) throw new Error("there is not enough memory");
    return at;
  }

  #given(bytes) {
    const at = this.#room(bytes.length);
    new Uint8Array(this.#exports.memory.buffer, at, bytes.length).set(bytes);
    return at;
  }

  #words(at, count) {
    return new Uint32Array(this.#exports.memory.buffer, at, count);
  }

  #text(at) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}

// The graph of a file that the engine has accepted.
function graph(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const at = Number(view.getBigUint64(24, true)), size = Number(view.getBigUint64(32, true));
  return JSON.parse(new TextDecoder().decode(bytes.subarray(at, at + size)));
}

// As many probabilities as there are logits.
export function probabilities(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
}

// Which part of a picture is shown to a model: left, top, width, height. Its shorter side becomes `margin` times the
// input's, and the middle is taken.
export function middle(width, height, model) {
  const [h, w] = model.shape;
  const scale = Math.min(width / w, height / h) / model.input.margin;
  return [(width - w * scale) / 2, (height - h * scale) / 2, w * scale, h * scale];
}
