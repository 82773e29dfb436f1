//! Bugs in the Python and the TypeScript client that a test of that client must find.
//!
//! The tests script the answers of the nodes, or the clock. The cases of the suite use real nodes and real time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::language::Language;
use crate::planted::plant;

/// A bug of a client.
struct OwnTest {
    language: &'static str,
    bug: &'static str,
    /// A file of the client's folder, and the texts before and after the change.
    file: &'static str,
    before: &'static str,
    after: &'static str,
    /// The file of the test that finds the bug, without its extension, and the name of the test.
    test: (&'static str, &'static str),
}

/// A test that takes longer hangs, in seconds.
const LONGEST_TEST: &str = "120";

const BUGS: &[OwnTest] = &[
    OwnTest {
        language: "Python",
        bug: "a check counts its own hand-over as a loss",
        file: "src/tenure/_core.py",
        before: "if hold.is_being_handed_over(token):",
        after: "if False:",
        test: ("test_hand_over", "test_check_during_the_own_hand_over_is_no_loss"),
    },
    OwnTest {
        language: "Python",
        bug: "an unavailable hand-over gives the lease up",
        file: "src/tenure/_core.py",
        before: "except Unavailable:\n                await self._keep_or_release(hold, was_drained)",
        after: "except Unavailable:\n                await self._give_up_and_release(hold)",
        test: ("test_hand_over", "test_unavailable_hand_over_leaves_the_lease_held"),
    },
    OwnTest {
        language: "Python",
        bug: "a watch does not ask for the members",
        file: "src/tenure/_watch.py",
        before: "self._transport.refresh_members(self._endpoint)",
        after: "pass",
        test: ("test_watch", "test_client_that_only_watches_finds_the_other_members"),
    },
    OwnTest {
        language: "Python",
        bug: "a watch tries only the given members",
        file: "src/tenure/_watch.py",
        before: "urls, first = endpoints.urls, endpoints.preferred",
        after: "urls, first = endpoints.given, endpoints.preferred % len(endpoints.given)",
        test: ("test_watch", "test_watch_tries_the_members_that_are_found_during_an_outage"),
    },
    OwnTest {
        language: "Python",
        bug: "a grant lasts longer than the longest hold",
        file: "src/tenure/_grant.py",
        before: "if self.ttl < math.inf and now + self.options.longest_hold < self.deadline:",
        after: "if False:",
        test: ("test_deadline", "test_longest_hold_below_the_default_ttl_ends_the_lease"),
    },
    OwnTest {
        language: "Python",
        bug: "a negative longest hold is accepted",
        file: "src/tenure/_options.py",
        before: "check_between(\"longest_hold\", self.longest_hold, SHORTEST_TTL, math.inf)",
        after: "pass",
        test: ("test_values", "test_invalid_options_are_refused"),
    },
    OwnTest {
        language: "Python",
        bug: "the longest hold counts from the last renewal",
        file: "src/tenure/_grant.py",
        before: "self.ttl = ttl\n        self.failures = 0",
        after: "self.ttl = ttl\n        self.since = sent\n        self.failures = 0",
        test: ("test_deadline", "test_renewals_do_not_extend_the_longest_hold"),
    },
    OwnTest {
        language: "Python",
        bug: "the renewals go on after an error of renew_while",
        file: "src/tenure/_hold.py",
        before: "goes_on = False",
        after: "goes_on = True",
        test: ("test_deadline", "test_renewals_end_without_progress"),
    },
    OwnTest {
        language: "Python",
        bug: "a stalled grant passes its token on",
        file: "src/tenure/states.py",
        before: "(Loss.UNREACHABLE, Loss.SUSPENDED, Loss.STALLED, Loss.HELD_LONGEST)",
        after: "(Loss.UNREACHABLE, Loss.SUSPENDED)",
        test: ("test_deadline", "test_acquire_after_the_end_of_the_renewals_gets_a_new_token"),
    },
    OwnTest {
        language: "Python",
        bug: "a second shutdown in threads has no result",
        file: "src/tenure/sync.py",
        before: "if self._manager._left is None:",
        after: "if True:",
        test: ("test_sync", "test_second_shutdown_returns_the_result_of_the_first"),
    },
    OwnTest {
        language: "Python",
        bug: "a candidate gives up after 60 s",
        file: "src/tenure/_election.py",
        before: "\"wait_timeout\", \"wait_abandoned\"",
        after: "\"wait_abandoned\"",
        test: ("test_campaign", "test_campaign_continues_after_a_refusal_that_a_wait_resolves"),
    },
    OwnTest {
        language: "Python",
        bug: "a second establish is refused",
        file: "src/tenure/_core.py",
        before: "version = standing[\"lease\"].get(\"metadata_version\", 0)",
        after: "version = 0",
        test: ("test_campaign", "test_leader_can_establish_again"),
    },
    OwnTest {
        language: "Python",
        bug: "a conflict of metadata is not retried",
        file: "src/tenure/_core.py",
        before: "if error.code != \"metadata_changed\" or attempt == MAX_METADATA_ATTEMPTS:",
        after: "if True:",
        test: ("test_campaign", "test_conflict_with_an_earlier_update_is_retried"),
    },
    OwnTest {
        language: "Python",
        bug: "an observer ends at an outage",
        file: "src/tenure/_election.py",
        before: "except (Unavailable, Unknown) as error:",
        after: "except Unknown as error:",
        test: ("test_campaign", "test_observer_waits_while_no_node_answers"),
    },
    OwnTest {
        language: "Python",
        bug: "an observer ignores the events of its election",
        file: "src/tenure/_election.py",
        before: "if event[\"name\"] == self._name:",
        after: "if event[\"name\"] != self._name:",
        test: ("test_campaign", "test_observer_sees_a_change_of_the_holder_at_once"),
    },
    OwnTest {
        language: "Python",
        bug: "a revoke is sent again",
        file: "src/tenure/_client.py",
        before: "RetryPolicy.NEVER, query",
        after: "RetryPolicy.CLAIM, query",
        test: ("test_values", "test_revoke_is_not_repeated_after_a_lost_answer"),
    },
    OwnTest {
        language: "Python",
        bug: "a list of holders ends after its second page",
        file: "src/tenure/_client.py",
        before: "page.get(\"cursor\") if len(same) == len(page[\"leases\"]) else None",
        after: "None",
        test: ("test_values", "test_get_reads_all_holders_of_a_counted_lease"),
    },
    OwnTest {
        language: "Python",
        bug: "the whole token file is the token",
        file: "src/tenure/_transport.py",
        before: "text.split(\"\\n\", 1)[0].strip()",
        after: "text.strip()",
        test: ("test_values", "test_first_line_of_the_token_file_is_sent"),
    },
    OwnTest {
        language: "Python",
        bug: "the token variable comes before the file",
        file: "src/tenure/_transport.py",
        before: "Path(path).read_text() if path else os.environ.get(TOKEN_VARIABLE, \"\")",
        after: "os.environ.get(TOKEN_VARIABLE) or (Path(path).read_text() if path else \"\")",
        test: ("test_values", "test_first_line_of_the_token_file_is_sent"),
    },
    OwnTest {
        language: "Python",
        bug: "the variable with the CAs is ignored",
        file: "src/tenure/_transport.py",
        before: "ca = ca or os.environ.get(\"TENURE_CA\") or None",
        after: "ca = ca or None",
        test: ("test_values", "test_files_of_tls_come_from_the_environment"),
    },
    OwnTest {
        language: "Python",
        bug: "the lease of a body hears the states of the next grant",
        file: "src/tenure/_lease.py",
        before: "if getattr(state, \"token\", 0) == token else None",
        after: "if True else None",
        test: ("test_scope", "test_lease_of_a_body_is_tied_to_its_grant"),
    },
    OwnTest {
        language: "Python",
        bug: "the probes of a long ttl have no bound",
        file: "src/tenure/_calls.py",
        before: "return min(max(third, SHORTEST_PROBE_INTERVAL), LONGEST_PROBE_INTERVAL)",
        after: "return max(third, SHORTEST_PROBE_INTERVAL)",
        test: ("test_values", "test_waiting_claim_probes_every_third_of_its_ttl"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a line separator hides an event",
        file: "dist/sse.js",
        before: "(.*)$/s.exec(line)",
        after: "(.*)$/.exec(line)",
        test: ("values", "line_separators_of_unicode_hide_no_event"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an answer in a pause is lost",
        file: "dist/retry.js",
        before: ".then((result) => ({ number, result }));",
        after: ".then((result) => (inFlight.delete(number), { number, result }));",
        test: ("retry", "renewal_accepts_an_answer_that_arrives_in_a_pause"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a check counts its own hand-over as a loss",
        file: "dist/operations.js",
        before: "if (!hold.isBeingHandedOver) {",
        after: "if (true) {",
        test: ("failures", "check_during_the_own_hand_over_is_no_loss_if_the_standing_is_ended"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an unavailable hand-over drops the lease",
        file: "dist/operations.js",
        before: "if (error instanceof Refused || error instanceof Unavailable) {",
        after: "if (error instanceof Refused) {",
        test: ("failures", "unavailable_hand_over_keeps_the_lease"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a watch does not ask for the members",
        file: "dist/watch.js",
        before: "this.#endpoints.refresh(this.#transport, endpoint);",
        after: "",
        test: ("client", "client_that_only_watches_finds_the_other_members"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a watch stays at a silent node",
        file: "dist/watch.js",
        before: "response.setTimeout(SILENCE_TIMEOUT_MS, () => response.destroy(new Error(\"the stream is silent\")));",
        after: "",
        test: ("client", "watch_leaves_a_node_that_is_silent"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "metadata has no bounds",
        file: "dist/options.js",
        before: "metadata: checkMetadata(metadata)",
        after: "metadata: { ...metadata }",
        test: ("values", "metadata_has_the_bounds_of_the_api"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a leader has no room for its mark",
        file: "dist/election.js",
        before: "checkMetadata({ ...options.metadata, [ESTABLISHED_KEY]: LARGEST_TOKEN });",
        after: "",
        test: ("values", "metadata_of_a_leader_leaves_room_for_the_mark_of_an_established_one"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a candidate gives up after 60 s",
        file: "dist/election.js",
        before: "\"wait_timeout\",",
        after: "",
        test: ("campaign", "campaign_continues_after_the_refusal_wait_timeout"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an established leader loses its metadata",
        file: "dist/election.js",
        before: "{ ...this.#options.metadata, [ESTABLISHED_KEY]",
        after: "{ [ESTABLISHED_KEY]",
        test: ("failures", "established_leader_keeps_its_metadata"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an observer ends at an outage",
        file: "dist/election.js",
        before: "if (!(error instanceof Unavailable || error instanceof Unknown)) {",
        after: "if (!(error instanceof Unknown)) {",
        test: ("failures", "observer_waits_at_a_cluster_without_a_leader"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an observer ends at an invalid answer",
        file: "dist/election.js",
        before: "if (!(error instanceof Unavailable || error instanceof Unknown)) {",
        after: "if (!(error instanceof Unavailable)) {",
        test: ("failures", "observer_waits_at_a_cluster_with_invalid_answers"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "an observer ignores the events of its election",
        file: "dist/election.js",
        before: "if (event.name === this.name) {",
        after: "if (event.name !== this.name) {",
        test: ("client", "observer_sees_a_change_of_the_holder_at_once"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "the manager forgets unreleased grants",
        file: "dist/core.js",
        before: "|| this.isOpen(now);",
        after: ";",
        test: ("failures", "unreleased_grant_is_remembered_among_many_names"),
    },
    OwnTest {
        language: "TypeScript",
        bug: "a list of holders ends after its second page",
        file: "dist/client.js",
        before: "cursor = longerName < 0 ? page.cursor : undefined;",
        after: "cursor = undefined;",
        test: ("client", "get_reads_all_holders_of_a_counted_lease"),
    },
];

/// The bugs that their tests do not find, and the tests that fail without a bug.
pub async fn missed(languages: &[Language], turns: &Semaphore) -> Vec<String> {
    let mut bugs = Vec::new();
    let mut files: BTreeMap<_, (&Language, &OwnTest, BTreeSet<&str>)> = BTreeMap::new();
    for language in languages {
        for bug in BUGS.iter().filter(|bug| bug.language == language.name) {
            bugs.push((language, bug));
            let of_file = files.entry((language.name, bug.test.0));
            of_file.or_insert_with(|| (language, bug, BTreeSet::new())).2.insert(bug.test.1);
        }
    }
    let failed = join_all(files.into_values().map(|(language, bug, tests)| async move {
        let _turn = turns.acquire().await.expect("nothing closes it");
        let copy = TempDir::new().expect("a folder");
        let language = plant(language, [bug.file, bug.before, bug.before], copy.path());
        let tests: Vec<&str> = tests.into_iter().collect();
        let (passes, output) = run(&language, copy.path(), bug.test.0, &tests).await;
        (!passes).then(|| format!("{}: without a bug, a test of {} fails:\n{output}", bug.language, bug.test.0))
    }));
    let missed = join_all(bugs.into_iter().map(|(language, bug)| async move {
        let _turn = turns.acquire().await.expect("nothing closes it");
        let copy = TempDir::new().expect("a folder");
        let language = plant(language, [bug.file, bug.before, bug.after], copy.path());
        let (_, output) = run(&language, copy.path(), bug.test.0, &[bug.test.1]).await;
        let is_found = output.lines().any(|line| is_failure(line, bug.test.1));
        (!is_found).then(|| format!("{}: {}, but {}:\n{output}", bug.language, bug.bug, bug.test.1))
    }));
    let (failed, missed) = tokio::join!(failed, missed);
    failed.into_iter().chain(missed).flatten().collect()
}

/// Runs tests of one file of the client in this folder. Returns whether they pass, and their output.
async fn run(language: &Language, folder: &Path, file: &str, tests: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.arg(LONGEST_TEST).arg(&language.command[0]).current_dir(folder).envs(language.environment.clone());
    if language.name == "Python" {
        command.args(["-m", "pytest", "--quiet", "--color=no", "-p", "no:cacheprovider"]);
        command.args(tests.iter().map(|test| format!("tests/{file}.py::{test}")));
    } else {
        command.arg("--test-reporter=tap").arg(format!("--test-name-pattern=^({})$", tests.join("|")));
        command.arg(format!("build/test/{file}.test.js"));
    }
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
    let ended = ended.expect("the program timeout exists");
    let output = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    (ended.status.success(), output)
}

/// Whether a line of pytest, or of node in the format TAP, says that the assertions of this test fail.
fn is_failure(line: &str, test: &str) -> bool {
    let of_pytest = line.starts_with("FAILED ") && line.contains(&format!("::{test}"));
    of_pytest || (line.trim_start().starts_with("not ok ") && line.trim_end().ends_with(&format!(" - {test}")))
}
