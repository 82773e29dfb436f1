// The work of the guides, for programs in JavaScript. It reports as work.py does, and ends when the check allows it.

import { appendFileSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const { GUIDE_NAME } = process.env;
const OWN = `working-${process.pid}`;

function report(...words) {
  appendFileSync("events", `${[GUIDE_NAME, ...words, Number(process.hrtime.bigint()) / 1e9].join(" ")}\n`);
}

/** Whether a process can still work. A killed one stays in the table until its parent reads its exit code. */
function isAlive(pid) {
  try {
    return !readFileSync(`/proc/${pid}/stat`, "utf8").includes(") Z ");
  } catch {
    return false;
  }
}

/** Whether another process works. Each one writes its own file before it looks for the others. */
function hasCompany() {
  const others = readdirSync(".").filter((file) => file.startsWith("working-") && file !== OWN);
  return others.some((file) => isAlive(Number(file.slice("working-".length))));
}

/** Works until the file `finish-NAME` exists. */
export async function writeReport(token = "-") {
  writeFileSync(OWN, "");
  const company = hasCompany() ? "overlap" : "alone";
  report("start", company, token);
  while (!existsSync(`finish-${GUIDE_NAME}`)) await sleep(10);
  rmSync(OWN);
  report("end", company, token);
}
