// Copies the license texts of the repository into this folder, so that the package has them. npm runs it before it packs.
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("..", import.meta.url));
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) {
  copyFileSync(join(folder, "../..", name), join(folder, name));
}
