// Copies the license texts of the repository into this folder, so that the package has them. npm runs it before it packs.
// `check` works on a copy of this folder, so it names the repository in TENURE_REPOSITORY.
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("..", import.meta.url));
const repository = process.env.TENURE_REPOSITORY ?? join(folder, "../..");
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) {
  copyFileSync(join(repository, name), join(folder, name));
}
