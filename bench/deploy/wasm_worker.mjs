// Worker process of bench.deploy.wasm_vs_onnxruntime_web: loads a runtime, then makes the requested calls per request.
// Fields of the job: runtime, engine (folder of lcrbnn.js and engine.wasm), modules (folder of node_modules), model,
// images (two float32 files: [h][w][c] and [c][h][w]), shape, threads, answers (output file).
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const job = JSON.parse(process.argv[2]);
const floats = (file) => new Float32Array(new Uint8Array(fs.readFileSync(file)).buffer);

const RUNTIMES = {
  async lcrbnn() {
    const { load } = await import(pathToFileURL(path.join(job.engine, "lcrbnn.js")));
    const engine = await load(fs.readFileSync(path.join(job.engine, "engine.wasm")));
    const model = engine.open(fs.readFileSync(job.model));
    const images = floats(job.images[0]);
    return { call: async () => model.run(images), facts: { kernels: [...new Set(model.kernels)].sort() } };
  },
  async "onnxruntime-web"() {
    const folder = path.join(job.modules, "node_modules", "onnxruntime-web", "dist");
    const ort = await import(pathToFileURL(path.join(folder, "ort.node.min.mjs")));
    ort.env.wasm.numThreads = job.threads;
    const session = await ort.InferenceSession.create(fs.readFileSync(job.model), { executionProviders: ["wasm"] });
    const [h, w, c] = job.shape;
    const images = new ort.Tensor("float32", floats(job.images[1]), [1, c, h, w]);
    return { call: async () => (await session.run({ images })).logits.data, facts: {} };
  },
};

const used = () => Object.values(process.cpuUsage()).reduce((a, b) => a + b, 0) / 1e6;
const { call, facts } = await RUNTIMES[job.runtime]();
fs.writeFileSync(job.answers, Buffer.from(Float32Array.from(await call()).buffer));
for (let i = 0; i < 3; i++) await call();
const start = used();
let busy = 0;
console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const began = used();
  const idle = began - start - busy;
  const ms = [];
  for (let i = 0; i <= Number(line); i++) {
    const before = performance.now();
    await call();
    ms.push(performance.now() - before);
  }
  busy += used() - began;
  console.log(JSON.stringify({ ms: ms.slice(1), busy_s: busy, idle_s: idle, ...facts }));
}
