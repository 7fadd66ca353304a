// The engine as WebAssembly, for web pages and node, without dependencies.
//
//   import { load } from "./lcrbnn.js";
//   const engine = await load("engine.wasm");                      // a URL, or the bytes
//   const model = engine.open(await (await fetch("model.bnn")).arrayBuffer());
//   model.shape, model.classes, model.input                        // [h, w, c], names, {top, mean, std, margin}
//   model.outputs                                                  // [{name, shape: [h, w, c]}, ...]
//   model.kernels                                                  // kernel of each node, such as "simd128"
//   const logits = model.run(numbers);                             // Float32Array, [n][h][w][c], normalised
//                                                                  // (several outputs: one after another per image)
//   const others = model.pixels(bytes);                            // Uint8Array, [n][h][w][c], from 0 to 255
//   model.close();
//
// If the engine rejects an argument, an Error with its message is thrown.

const MESSAGE = 320; // bytes of an error message
const BAD_DESCRIPTOR = 8, NOT_SUPPORTED = 52; // WASI error codes for "no such folder" and "no such function"

// The system calls that the C library needs. There are no files and no environment variables.
function systemCalls(memory) {
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

// Compile the engine from a URL, a Response, or its bytes.
export async function load(source) {
  const bytes = source instanceof ArrayBuffer || ArrayBuffer.isView(source) ? source : await fetchBytes(source);
  const module = await WebAssembly.compile(bytes);
  let exports;
  const calls = systemCalls(() => exports.memory);
  const imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module))
    (imports[from] ??= {})[name] = calls[name] ?? (() => NOT_SUPPORTED);
  exports = (await WebAssembly.instantiate(module, imports)).exports;
  exports._initialize();
  return new Engine(exports);
}

async function fetchBytes(source) {
  const response = await (source instanceof Response ? source : fetch(source));
  if (!response.ok) throw new Error(`${response.url || source} cannot be read: ${response.status}`);
  return response.arrayBuffer();
}

class Engine {
  #exports;

  constructor(exports) {
    this.#exports = exports;
  }

  // Open the bytes of a .bnn file, which are copied. The kernel is "simd128" or "scalar"; the default is the fastest.
  open(bytes, kernel = "") {
    return new Model(this.#exports, bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes), kernel);
  }
}

class Model {
  #exports;
  #model = 0;

  constructor(exports, bytes, kernel) {
    this.#exports = exports;
    const input = this.#copyIn(bytes);
    const name = this.#copyIn(new TextEncoder().encode(`${kernel}\0`));
    const out = this.#allocate(4);
    try {
      this.#call((message) => exports.lcrbnn_open_memory(input, bytes.length, 0, name, out, message, MESSAGE));
      this.#model = this.#readWords(out, 1)[0];
    } finally {
      exports.free(input);
      exports.free(name);
      exports.free(out);
    }
    const info = this.#allocate(64);
    exports.lcrbnn_get_info(this.#model, info);
    const [height, width, channels, classes, nodes, , outputs] = this.#readWords(info, 7);
    exports.free(info);
    this.shape = [height, width, channels];
    this.classes = Array.from({ length: classes }, (_, i) => this.#readText(exports.lcrbnn_class_name(this.#model, i)));
    this.kernels = Array.from({ length: nodes }, (_, i) => this.#readText(exports.lcrbnn_node_kernel(this.#model, i)));
    this.outputs = Array.from({ length: outputs }, (_, i) => this.#readOutput(i));
    this.input = { margin: 1, ...parseGraph(bytes).input };
  }

  #readOutput(index) {
    const shape = this.#allocate(12);
    this.#exports.lcrbnn_output_shape(this.#model, index, shape);
    const output = { name: this.#readText(this.#exports.lcrbnn_output_name(this.#model, index)), shape: [...this.#readWords(shape, 3)] };
    this.#exports.free(shape);
    return output;
  }

  // Return logits [n][classes] of float32 images [n][h][w][c], normalised with the values of `input`.
  run(numbers) {
    return this.#run(numbers instanceof Float32Array ? numbers : new Float32Array(numbers), this.#exports.lcrbnn_run);
  }

  // The same for 8-bit images, 0 to 255, which the engine scales to 0 to `input.top` and normalises.
  pixels(bytes) {
    return this.#run(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes), this.#exports.lcrbnn_run_pixels);
  }

  // Free the memory; the model cannot be used afterwards.
  close() {
    this.#exports.lcrbnn_close(this.#model);
    this.#model = 0;
  }

  #run(images, run) {
    if (!this.#model) throw new Error("this model is closed");
    const numbersPerImage = this.shape[0] * this.shape[1] * this.shape[2];
    const n = images.length / numbersPerImage;
    if (!Number.isInteger(n) || n === 0)
      throw new Error(`images must be a multiple of ${numbersPerImage} numbers (${this.shape.join(" x ")}); got ${images.length}`);
    const count = n * this.outputs.reduce((sum, { shape: [h, w, c] }) => sum + h * w * c, 0);
    const input = this.#copyIn(new Uint8Array(images.buffer, images.byteOffset, images.byteLength));
    const out = this.#allocate(count * 4);
    try {
      this.#call((message) => run(this.#model, input, n, out, 1, message, MESSAGE));
      return new Float32Array(this.#exports.memory.buffer.slice(out, out + count * 4));
    } finally {
      this.#exports.free(input);
      this.#exports.free(out);
    }
  }

  #call(call) {
    const message = this.#allocate(MESSAGE);
    try {
      if (call(message) !== 0) throw new Error(this.#readText(message));
    } finally {
      this.#exports.free(message);
    }
  }

  #allocate(bytes) {
    const pointer = this.#exports.malloc(Math.max(bytes, 1));
    if (!pointer) throw new Error("there is not enough memory");
    return pointer;
  }

  #copyIn(bytes) {
    const pointer = this.#allocate(bytes.length);
    new Uint8Array(this.#exports.memory.buffer, pointer, bytes.length).set(bytes);
    return pointer;
  }

  #readWords(at, count) {
    return new Uint32Array(this.#exports.memory.buffer, at, count);
  }

  #readText(at) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}

// Return the graph of a file that the engine has accepted.
function parseGraph(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const at = Number(view.getBigUint64(24, true)), size = Number(view.getBigUint64(32, true));
  return JSON.parse(new TextDecoder().decode(bytes.subarray(at, at + size)));
}

// Return the softmax of the logits.
export function probabilities(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
}

// Return the part of a picture that a model gets: left, top, width, height. The shorter side is resized to `margin`
// times that of the input, then the centre is cropped.
export function middle(width, height, model) {
  const [h, w] = model.shape;
  const scale = Math.min(width / w, height / h) / model.input.margin;
  return [(width - w * scale) / 2, (height - h * scale) / 2, w * scale, h * scale];
}
