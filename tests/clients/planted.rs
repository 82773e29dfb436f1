//! Bugs in the Python and the TypeScript client that the suite must find. tests/mutants has the same bugs of the Rust
//! client.
//!
//! The suite copies the folder of a client, replaces a text of its source, and runs the driver of the copy. For the
//! bugs of [`own_tests`], it runs a test of the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::cases;
use crate::cluster::Cluster;
use crate::language::{self, Language};
use crate::own_tests;
use crate::suite::{BROKEN, CONCURRENT, run_case, turn};

/// A bug of a client.
struct Planted {
    language: &'static str,
    bug: &'static str,
    /// A file of the client's folder, and the texts before and after the change.
    file: &'static str,
    before: &'static str,
    after: &'static str,
    /// A case that finds the bug, and a part of its message.
    case: &'static str,
    found: &'static str,
}

const WORKS_LATE: &str = "broken promise: holder_stops_first";
const RENEWS_LATE: &str = "are not in 3s..6s";
const IS_LEFT_HELD: &str = "no transition of";
const TRUSTS_OTHERS: &str = "certificate of another host";

const BUGS: [Planted; 23] = [
    Planted {
        language: "Python",
        bug: "it ignores the drift",
        file: "src/tenure/_grant.py",
        before: "return sent + ttl * (1 - drift_permille / 1000)",
        after: "return sent + ttl",
        case: "drift_ends_work_early",
        found: WORKS_LATE,
    },
    Planted {
        language: "Python",
        bug: "a grant counts from its response",
        file: "src/tenure/_core.py",
        before: "certain_time(lease), sent, self.clock(), options)",
        after: "certain_time(lease), self.clock(), self.clock(), options)",
        case: "late_grant_counts_from_its_request",
        found: WORKS_LATE,
    },
    Planted {
        language: "Python",
        bug: "it renews after two thirds of the ttl",
        file: "src/tenure/_grant.py",
        before: "else ttl / 3",
        after: "else ttl * 2 / 3",
        case: "renewals_come_at_a_third_of_the_ttl",
        found: RENEWS_LATE,
    },
    Planted {
        language: "Python",
        bug: "a cancelled acquire releases nothing",
        file: "src/tenure/_core.py",
        before: "hold.resolver = self.spawn(self._resolve_abandoned(hold, claim, wait, was_ambiguous))\n            \
                 hold.resolver.add_done_callback(lambda _: _end_resolver(hold))",
        after: "claim.cancel()",
        case: "cancelled_acquire_releases_a_late_grant",
        found: IS_LEFT_HELD,
    },
    Planted {
        language: "Python",
        bug: "a renewal counts from its response",
        file: "src/tenure/_keeper.py",
        before: "apply_result(hold, renewal.token, results[index], sent, now)",
        after: "apply_result(hold, renewal.token, results[index], now, now)",
        case: "delayed_renewal_counts_from_its_send",
        found: WORKS_LATE,
    },
    Planted {
        language: "Python",
        bug: "each acquire returns the token of the first grant",
        file: "src/tenure/_core.py",
        before: "        self.keeper.keep(hold)\n        return int(lease[\"token\"])",
        after: "        self.keeper.keep(hold)\n        return hold.__dict__.setdefault(\"first\", int(lease[\"token\"]))",
        case: "each_grant_has_a_higher_token",
        found: "broken promise: tokens_rise",
    },
    Planted {
        language: "Python",
        bug: "a second grant has the token of the first one",
        file: "src/tenure/_hold.py",
        before: "        options = options or self.options\n",
        after: "        options = options or self.options\n        token = self.__dict__.setdefault(\"first\", token)\n",
        case: "each_grant_has_a_higher_token",
        found: "broken promise: current_token_only",
    },
    Planted {
        language: "Python",
        bug: "it asks for half the ttl",
        file: "src/tenure/_options.py",
        before: "\"infinite\" if self.ttl == math.inf else millis(self.ttl)",
        after: "\"infinite\" if self.ttl == math.inf else millis(self.ttl / 2)",
        case: "crashed_driver_leaves_the_lease_to_its_ttl",
        found: "broken promise: no_early_expiry",
    },
    Planted {
        language: "Python",
        bug: "its renewals do not end at the loss",
        file: "src/tenure/_core.py",
        before: "        self.keeper.keep(hold)\n        return int(lease[\"token\"])",
        after: "        self.keeper.keep(hold)

        async def renew_forever() -> None:
            while True:
                await asyncio.sleep(0.1)
                with contextlib.suppress(TenureError):
                    await self.calls.renew(hold.holder, [(hold.name, int(lease[\"token\"]))], RetryBudget.within(0.1))

        self.spawn(renew_forever())
        return int(lease[\"token\"])",
        case: "lost_lease_expires_by_its_ttl",
        found: "broken promise: expiry_happens",
    },
    Planted {
        language: "Python",
        bug: "an acquire without an answer is unavailable",
        file: "src/tenure/_retry.py",
        before: "if self.ambiguous is not None:",
        after: "if False:",
        case: "lost_answers_are_unknown",
        found: "broken promise: unknown_is_said",
    },
    Planted {
        language: "Python",
        bug: "a certificate of another host is accepted",
        file: "src/tenure/_transport.py",
        before: "    context = ssl.create_default_context(cafile=ca)\n",
        after: "    context = ssl.create_default_context(cafile=ca)\n    context.check_hostname = False\n",
        case: "tls_and_access_token",
        found: TRUSTS_OTHERS,
    },
    Planted {
        language: "Python-sync",
        bug: "a lost lease counts as held in threads",
        file: "src/tenure/sync.py",
        before: "return self._lease.is_held",
        after: "return self._lease.state.kind not in (\"idle\", \"released\")",
        case: "drift_ends_work_early",
        found: WORKS_LATE,
    },
    Planted {
        language: "TypeScript",
        bug: "a grant counts from its response",
        file: "dist/claims.js",
        before: "sent: granted.sent,",
        after: "sent: core.clock.now(),",
        case: "delayed_acquire_counts_from_its_send",
        found: WORKS_LATE,
    },
    Planted {
        language: "TypeScript",
        bug: "the access token is not sent",
        file: "dist/transport.js",
        before: "{ authorization: `Bearer ${accessToken}` }",
        after: "{}",
        case: "tls_and_access_token",
        found: "\"unauthenticated\"",
    },
    Planted {
        language: "TypeScript",
        bug: "a certificate of another host is accepted",
        file: "dist/transport.js",
        before: "...pem(tls) }",
        after: "...pem(tls), checkServerIdentity: () => undefined }",
        case: "tls_and_access_token",
        found: TRUSTS_OTHERS,
    },
    Planted {
        language: "TypeScript",
        bug: "a deadline is three ttls later",
        file: "dist/hold.js",
        before: "return sent + ttl -",
        after: "return sent + 3 * ttl -",
        case: "isolated_leader_is_deposed_first",
        found: "broken promise: one_holder",
    },
    Planted {
        language: "TypeScript",
        bug: "a release sends nothing",
        file: "dist/operations.js",
        before: "return sendRelease(this.#core, record, token, signal);",
        after: "return true;",
        case: "late_duplicate_renewal_has_no_effect",
        found: "broken promise: grants_survive",
    },
    Planted {
        language: "TypeScript",
        bug: "a check asks no node",
        file: "dist/operations.js",
        before: "        if (!hold.isActive) {\n            return false;",
        after: "        if (true) {\n            return hold.isActive;",
        case: "check_sees_a_revoke",
        found: "broken promise: reads_are_current",
    },
    Planted {
        language: "TypeScript",
        bug: "it asks for the leader once",
        file: "dist/election.js",
        before: "const { held } = await this.#manager.client.explain(this.name, options);",
        after: "this.read ??= this.#manager.client.explain(this.name, options); const { held } = await this.read;",
        case: "election_has_one_leader",
        found: "broken promise: reads_are_current",
    },
    Planted {
        language: "TypeScript",
        bug: "it ignores the drift",
        file: "dist/hold.js",
        before: "(ttl * this.#driftPermille) / 1_000",
        after: "0",
        case: "drift_ends_work_early",
        found: WORKS_LATE,
    },
    Planted {
        language: "TypeScript",
        bug: "a renewal counts from its response",
        file: "dist/keeper.js",
        before: "apply(hold, results[index], sent)",
        after: "apply(hold, results[index], this.#clock.now())",
        case: "late_renewal_counts_from_its_request",
        found: WORKS_LATE,
    },
    Planted {
        language: "TypeScript",
        bug: "it renews after two thirds of the ttl",
        file: "dist/hold.js",
        before: "return sent + third *",
        after: "return sent + 2 * third *",
        case: "renewals_come_at_a_third_of_the_ttl",
        found: RENEWS_LATE,
    },
    Planted {
        language: "TypeScript",
        bug: "a cancelled acquire releases nothing",
        file: "dist/claims.js",
        before: "await abandon(core, record, claimed);",
        after: "claimed.abort(), record.operation.unlock();",
        case: "cancelled_acquire_releases_a_late_grant",
        found: IS_LEFT_HELD,
    },
];

#[test]
fn each_promise_has_a_planted_bug() {
    let cases = cases::all();
    let breaks = |bug: &Planted, promise: &str| {
        let of_case = |entry: &cases::Entry| entry.name == bug.case && entry.promise == promise;
        bug.found.strip_prefix(BROKEN).map_or_else(|| cases.iter().any(of_case), |found| found == promise)
    };
    for entry in &cases {
        assert!(BUGS.iter().any(|bug| breaks(bug, entry.promise)), "no bug breaks {}", entry.promise);
    }
}

#[test]
fn planted_client_bugs_are_found() {
    let (others, missing) = language::others();
    for name in missing {
        println!("NOT CHECKED: planted bugs of the {name} client, because its driver is not given");
    }
    let _turn = turn();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("the system has threads").block_on(async {
        let (shared, turns) = (Arc::new(Cluster::start().await), Semaphore::new(CONCURRENT));
        let bugs = others.iter().flat_map(|language| {
            BUGS.iter().enumerate().filter(|(_, bug)| bug.language == language.name).map(move |bug| (language, bug))
        });
        let missed = join_all(bugs.map(|(language, (number, bug))| {
            let (shared, turns) = (&shared, &turns);
            async move {
                let _turn = turns.acquire().await.expect("nothing closes it");
                let copy = TempDir::new().expect("a folder");
                let entry = cases::all().into_iter().find(|entry| entry.name == bug.case).expect("the case exists");
                let language = plant(language, [bug.file, bug.before, bug.after], copy.path());
                let failure = run_case(&entry, &language, shared, format!("planted.{number}")).await.err();
                let is_found = failure.as_ref().is_some_and(|failure| failure.contains(bug.found));
                (!is_found).then(|| format!("{}: {}, but {}: {failure:?}", bug.language, bug.bug, bug.case))
            }
        }));
        let mut missed: Vec<String> = missed.await.into_iter().flatten().collect();
        missed.extend(own_tests::missed(&others, &turns).await);
        assert!(missed.is_empty(), "{}", missed.join("\n"));
    });
}

/// Copies a client, replaces a text in a file of the copy and returns the driver of the copy.
pub fn plant(language: &Language, [file, before, after]: [&str; 3], copy: &Path) -> Language {
    let driver = language.command.iter().position(|word| word.contains("/conformance/driver"));
    let driver = driver.unwrap_or_else(|| panic!("no file conformance/driver in {:?}", language.command));
    let path = fs::canonicalize(&language.command[driver]).expect("the driver exists");
    let folder = path
        .ancestors()
        .find(|folder| ["pyproject.toml", "package.json"].iter().any(|project| folder.join(project).exists()));
    let folder = folder.expect("a driver lies in the folder of its client");
    copy_folder(folder, copy);

    let changed_file = copy.join(file);
    let text = fs::read_to_string(&changed_file).unwrap_or_else(|error| panic!("{}: {error}", changed_file.display()));
    let places = text.matches(before).count();
    assert_eq!(places, 1, "{file} has {places} times {before:?}: update the planted bug");
    fs::write(&changed_file, text.replace(before, after)).expect("the copy is writable");

    let mut changed = language.clone();
    let of_copy: PathBuf = copy.join(path.strip_prefix(folder).expect("an ancestor"));
    changed.command[driver] = of_copy.display().to_string();
    // The environment of Python has the original package.
    changed.environment.push(("PYTHONPATH".to_owned(), copy.join("src").display().to_string()));
    changed
}

/// Copies a folder, without the packages of other projects.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("a readable folder");
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "node_modules" {
            std::os::unix::fs::symlink(path, target).expect("writable");
        } else if path.is_dir() && !entry.file_name().to_string_lossy().starts_with('.') {
            copy_folder(&path, &target);
        } else if path.is_file() {
            fs::copy(path, target).expect("writable");
        }
    }
}
