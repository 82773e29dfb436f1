use std::io::Write;
use std::os::fd::AsRawFd;

use super::*;
use crate::tls::{ClientCertificates, TlsMode, TlsVersion};

const THREE: &str = include_str!("../../cluster.toml");

fn problems(text: &str) -> Vec<String> {
    Config::parse(text, Path::new("/etc/tenure")).expect_err("the text has problems").0
}

fn one_node(rest: &str) -> String {
    format!("{rest}\n[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"127.0.0.1:7201\"\ndata = \"data/1\"\n")
}

#[test]
fn example_is_a_three_node_cluster_with_defaults() {
    let config = Config::parse(THREE, Path::new("/etc/tenure")).expect("the example is valid");
    let dev = Config::dev(Path::new("/etc/tenure/data"));
    assert_eq!(config, Config { cluster: "local".to_owned(), ..dev });
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn commented_settings_of_the_example_show_defaults() {
    let setting =
        |line: &str| line == "#[tls]" || line.starts_with('#') && line.contains(" = ") && !line.starts_with("# ");
    let uncommented =
        THREE.lines().map(|line| if setting(line) { &line[1..] } else { line }).collect::<Vec<_>>().join("\n");
    assert_ne!(uncommented, THREE);
    let example = Config::parse(THREE, Path::new("")).expect("the example is valid");
    let explicit = Config::parse(&uncommented, Path::new("")).unwrap_or_else(|problems| panic!("{problems}"));
    // Only the files have no defaults.
    let files = TlsSettings::new("tls/ca.pem", "tls/node-{node}.pem", "tls/node-{node}.key");
    assert_eq!(explicit, Config { tls: Some(files), ..example });
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let text = one_node("cluster = \"a\"").replace("data/1", "/var/lib/tenure");
    let config = Config::parse(&text, Path::new("/etc/tenure")).expect("the file is valid");
    assert_eq!(config.nodes[0].data, Path::new("/var/lib/tenure"));
    let config = Config::parse(&one_node("cluster = \"a\""), Path::new("/etc/tenure")).expect("the file is valid");
    assert_eq!(config.nodes[0].data, Path::new("/etc/tenure/data/1"));
}

#[test]
fn all_problems_are_reported_with_their_keys() {
    let found = problems(
        r#"
        clutser = "typo"
        [[node]]
        id = 0
        http = "127.0.0.1"
        peer = 7201
        data = ""
        colour = "red"
        [raft]
        profile = "moon"
        heartbeat_interval_ms = 200
        election_timeout_min_ms = 500
        election_timeout_max_ms = 400
        [lease]
        default_ttl_ms = 5
        min_ttl_ms = 60000
        max_ttl_ms = 1000
        history = "long"
        [tsl]
        "#,
    );
    let keys: Vec<&str> = found.iter().map(|problem| problem.split(": ").next().unwrap_or_default()).collect();
    assert_eq!(
        keys,
        [
            "cluster",
            "clutser",
            "node[1].id",
            "node[1].http",
            "node[1].peer",
            "node[1].data",
            "node[1].colour",
            "raft.profile",
            "raft.heartbeat_interval_ms",
            "raft.election_timeout_min_ms",
            "lease.default_ttl_ms",
            "lease.min_ttl_ms",
            "lease.history",
            "tsl"
        ]
        .as_slice(),
        "{found:#?}"
    );
}

#[test]
fn problems_have_lines_in_the_order_of_the_file() {
    let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"127.0.0.1:7201\"\ndata = \"data/1\"\n";
    let found =
        problems(&format!("{node}[[node]]\nid = 2\nhttp = \"x\"\npeer = 7202\n[raft]\nprofil = \"wan\"\n[http]\n"));
    let expected = "`profile`, `heartbeat_interval_ms`, `election_timeout_min_ms`, `election_timeout_max_ms`, \
                    `drift_permille`, `snapshot_every`, `snapshot_keep`";
    assert_eq!(
        found,
        [
            "cluster: must be set (line 1)".to_owned(),
            "node[2].data: must be set (line 6)".to_owned(),
            "node[2].http: \"x\" must be host:port (line 8)".to_owned(),
            "node[2].peer: invalid type: integer `7202`, expected a string (line 9)".to_owned(),
            format!("raft.profil: unknown field `profil`, expected one of {expected} (line 11)"),
        ]
    );
}

#[test]
fn values_of_a_wrong_type_are_refused() {
    let found = |line: &str| problems(&one_node(&format!("cluster = \"a\"\n{line}"))).swap_remove(0);
    let expected =
        |key: &str, found: &str, expected: &str| format!("{key}: invalid type: {found}, expected {expected} (line 2)");
    assert_eq!(found("allow_insecure_network = 1"), expected("allow_insecure_network", "integer `1`", "a boolean"));
    assert_eq!(found("http = 1"), expected("http", "integer `1`", "a table"));
    assert_eq!(found("http = [1]"), expected("http", "sequence", "a table"));
    let number = |value: &str| found(&format!("http.max_waits = {value}"));
    let integer = "an integer from 0 to 16384";
    assert_eq!(number("\"1\""), expected("http.max_waits", "string \"1\"", integer));
    assert_eq!(number("nan"), expected("http.max_waits", "null", integer));
    assert_eq!(number("1.0"), expected("http.max_waits", "floating point `1.0`", integer));
    let nodes = problems("cluster = \"a\"\nnode = 1");
    assert_eq!(nodes[0], "node: invalid type: integer `1`, expected a sequence (line 2)");
    let nodes = problems("cluster = \"a\"\nnode = [1, { id = -1 }]");
    assert_eq!(nodes[0], "node[1]: invalid type: integer `1`, expected a table (line 2)");
    let nodes = problems("cluster = \"a\"\nnode = [[5]]");
    assert_eq!(nodes[0], "node[1]: invalid type: sequence, expected a table (line 2)");
    let nodes = problems("cluster = \"a\"\nnode = [1, { id = -1 }]");
    let id = "node[2].id: -1 is outside 1 to 9223372036854775807 (line 2)".to_owned();
    assert!(nodes.contains(&id), "{nodes:?}");
}

#[test]
fn unknown_keys_are_reported_up_to_100() {
    let unknown = |count: usize| (0..count).map(|number| format!("key{number} = 1\n")).collect::<String>();
    for (count, reported) in [(99, 99), (100, 100), (200, 100)] {
        assert_eq!(problems(&format!("{}{THREE}", unknown(count))).len(), reported);
    }
}

#[test]
fn duplicate_ids_addresses_and_folders_are_refused() {
    let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"127.0.0.1:7101\"\ndata = \"data\"\n";
    let found = problems(&format!("cluster = \"a\"\n{node}{node}"));
    assert_eq!(
        found,
        [
            "node: id 1 is used 2 times; each must be unique (line 2)",
            "node: address 127.0.0.1:7101 is used 4 times; each must be unique (line 2)",
            "node: data /etc/tenure/data is used 2 times; each must be unique (line 2)",
        ]
    );
}

#[test]
fn clusters_of_one_node_and_of_an_even_number_are_warned() {
    let node = |id: u32| {
        format!("[[node]]\nid = {id}\nhttp = \"127.0.0.1:{id}\"\npeer = \"127.0.0.1:10{id}\"\ndata = \"{id}\"\n")
    };
    let warnings = |count: u32| {
        let nodes: String = (1..=count).map(node).collect();
        Config::parse(&format!("cluster = \"a\"\n{nodes}"), Path::new("")).expect("valid").warnings()
    };
    assert_eq!(warnings(1), ["one node tolerates no failure: leases are unavailable while it is down"]);
    for count in [2, 4, 6] {
        let expected = format!("{count} nodes tolerate no more failures than {} nodes", count - 1);
        assert_eq!(warnings(count), [expected]);
    }
    assert_eq!([warnings(3), warnings(5)], [Vec::<String>::new(), Vec::new()]);
}

#[test]
fn non_loopback_addresses_need_allow_insecure_network() {
    for address in ["127.0.0.1:7101", "127.0.0.1:7201"] {
        for open in ["10.0.0.1:7301", "[2001:db8::1]:7301", "tenure.example:7301"] {
            let text = one_node("cluster = \"a\"").replace(address, open);
            let found = problems(&text);
            assert!(matches!(found.as_slice(), [one] if one.contains("allow_insecure_network = true")), "{found:?}");
            let asked = format!("allow_insecure_network = true\n{text}");
            let config = Config::parse(&asked, Path::new("")).expect("the network is allowed");
            assert!(config.warnings().iter().any(|warning| warning.starts_with("allow_insecure_network")));
        }
    }
}

#[cfg(feature = "compat-leases")]
#[test]
fn lease_service_needs_a_history_for_its_ids() {
    let text = |history: u32| {
        one_node(&format!("cluster = \"a\"\n[lease]\nhistory = {history}\n[http]\ncompat_leases = true"))
    };
    assert_eq!(problems(&text(1)), ["lease.history: http.compat_leases needs at least 2 for its ids (line 3)"]);
    assert!(Config::parse(&text(2), Path::new("")).expect("2 is enough").http.compat_leases);
}

#[test]
fn single_timings_override_the_profile() {
    let config = Config::parse(
        &format!("{}\n[raft]\nprofile = \"wan\"\nheartbeat_interval_ms = 400", one_node("cluster = \"a\"")),
        Path::new(""),
    )
    .expect("the file is valid");
    assert_eq!(config.raft, RaftTimings { heartbeat_interval_ms: 400, ..RaftTimings::wan() });
}

/// The numbers of the table in docs/operations.md.
#[test]
fn profiles_have_the_documented_timings() {
    for (profile, expected) in
        [("lan", [75, 225, 325, 10, 20_000, 2_000]), ("wan", [500, 2_500, 4_000, 10, 20_000, 2_000])]
    {
        let text = one_node(&format!("raft.profile = \"{profile}\"\ncluster = \"a\""));
        let raft = Config::parse(&text, Path::new("")).expect("the file is valid").raft;
        let timings = [
            raft.heartbeat_interval_ms,
            raft.election_timeout_min_ms,
            raft.election_timeout_max_ms,
            raft.drift_permille,
            raft.snapshot_every,
            raft.snapshot_keep,
        ];
        assert_eq!(timings, expected, "{profile}");
    }
}

#[test]
fn syntax_error_names_the_line() {
    let found = problems("cluster = ");
    assert!(matches!(found.as_slice(), [one] if one.contains("line 1")), "{found:?}");
    let missing = Config::load(Path::new("/nowhere/cluster.toml")).expect_err("the file does not exist");
    assert!(missing.to_string().starts_with("cannot read /nowhere/cluster.toml"), "{missing}");
}

/// A number of the file, its bounds, and other settings that its minimum and maximum require.
struct Bound {
    section: &'static str,
    key: &'static str,
    min: i64,
    max: i64,
    with_min: &'static str,
    with_max: &'static str,
    get: fn(&Config) -> u64,
}

fn bound(section: &'static str, key: &'static str, min: i64, max: i64, get: fn(&Config) -> u64) -> Bound {
    Bound { section, key, min, max, with_min: "", with_max: "", get }
}

impl Bound {
    fn with_min(self, with_min: &'static str) -> Bound {
        Bound { with_min, ..self }
    }

    fn with_max(self, with_max: &'static str) -> Bound {
        Bound { with_max, ..self }
    }

    fn parse(&self, number: i64, others: &str) -> Result<Config, Problems> {
        let Bound { section, key, .. } = self;
        let text = one_node(&format!("cluster = \"a\"\n[{section}]\n{key} = {number}\n{others}"));
        Config::parse(&text, Path::new(""))
    }
}

fn backup_of(config: &Config) -> &BackupSchedule {
    config.backup.as_ref().expect("the file has a folder for backups")
}

/// All numbers of the table in docs/operations.md.
fn bounds() -> Vec<Bound> {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let raft = [
        bound("raft", "heartbeat_interval_ms", 10, 10_000, |config| config.raft.heartbeat_interval_ms)
            .with_max("election_timeout_min_ms = 30000\nelection_timeout_max_ms = 60000"),
        bound("raft", "election_timeout_min_ms", 50, 59_999, |config| config.raft.election_timeout_min_ms)
            .with_min("heartbeat_interval_ms = 10")
            .with_max("election_timeout_max_ms = 60000"),
        bound("raft", "election_timeout_max_ms", 51, 60_000, |config| config.raft.election_timeout_max_ms)
            .with_min("heartbeat_interval_ms = 10\nelection_timeout_min_ms = 50"),
        bound("raft", "drift_permille", 1, 200, |config| config.raft.drift_permille),
        bound("raft", "snapshot_every", 100, 100_000_000, |config| config.raft.snapshot_every)
            .with_min("snapshot_keep = 0"),
        bound("raft", "snapshot_keep", 0, 99_999_999, |config| config.raft.snapshot_keep)
            .with_max("snapshot_every = 100000000"),
    ];
    let lease = [
        bound("lease", "default_ttl_ms", 100, DAY_MS, |config| config.ttl.default_ms),
        bound("lease", "min_ttl_ms", 100, DAY_MS, |config| config.ttl.min_ms).with_max("default_ttl_ms = 86400000"),
        bound("lease", "max_ttl_ms", 100, DAY_MS, |config| config.ttl.max_ms).with_min("default_ttl_ms = 100"),
        bound("lease", "max_leases", 1, 10_000_000, |config| config.lease.limits.max_leases),
        bound("lease", "max_waiters", 0, 100_000, |config| config.lease.limits.max_waiters.into()),
        bound("lease", "waiter_timeout_ms", 1_000, 600_000, |config| config.lease.limits.waiter_timeout_ms),
        bound("lease", "history", 1, 1_000, |config| config.lease.limits.history.into()),
        bound("lease", "ended_keep_ms", 0, 7 * DAY_MS, |config| config.lease.limits.ended_keep_ms),
        bound("lease", "ended_keep", 0, 1_000_000, |config| config.lease.limits.ended_keep),
        bound("lease", "tick_ms", 50, 60_000, |config| config.lease.tick_ms),
    ];
    let http = [
        bound("http", "max_connections", 16, 1_000_000, |config| config.http.max_connections as u64),
        bound("http", "max_requests", 16, 16_384, |config| config.http.max_requests as u64),
        bound("http", "max_waits", 0, 16_384, |config| config.http.max_waits as u64),
        bound("http", "max_watches", 0, 1_000_000, |config| config.http.max_watches as u64),
        bound("http", "body_budget_mib", 4, 16_384, |config| config.http.body_budget_mib as u64),
    ];
    let dir = "dir = \"backups\"";
    let backup = [
        bound("backup", "every_ms", 1_000, 30 * DAY_MS, |config| backup_of(config).every_ms),
        bound("backup", "keep", 1, 10_000, |config| backup_of(config).keep as u64),
    ];
    let backup = backup.map(|bound| bound.with_min(dir).with_max(dir));
    raft.into_iter().chain(lease).chain(http).chain(backup).collect()
}

#[test]
fn numbers_are_accepted_up_to_their_bounds() {
    for bound in bounds() {
        let Bound { section, key, min, max, .. } = bound;
        for (number, others) in [(min, bound.with_min), (max, bound.with_max)] {
            let config = bound.parse(number, others).unwrap_or_else(|problems| panic!("{key} = {number}: {problems}"));
            assert_eq!((bound.get)(&config), number as u64, "{section}.{key}");
        }
        for (number, others) in [(min - 1, bound.with_min), (max + 1, bound.with_max)] {
            let Problems(refused) = bound.parse(number, others).expect_err(key);
            assert_eq!(refused, [format!("{section}.{key}: {number} is outside {min} to {max} (line 3)")]);
        }
    }
}

#[test]
fn bounds_cover_every_number_of_the_example() {
    let is_number = |value: &str| value.trim().parse::<i64>().is_ok();
    let settings = THREE.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
    let mut keys: Vec<&str> = settings.filter(|(_, value)| is_number(value)).map(|(key, _)| key).collect();
    let mut tested: Vec<&str> = bounds().iter().map(|bound| bound.key).collect();
    keys.sort_unstable();
    tested.sort_unstable();
    assert_eq!(tested, keys);
}

#[test]
fn former_key_of_the_waiter_timeout_still_works() {
    let parse = |lease: &str| Config::parse(&one_node(&format!("cluster = \"a\"\n[lease]\n{lease}")), Path::new(""));
    let config = parse("patience_ms = 2000").expect("the former key is accepted");
    assert_eq!(config.lease.limits.waiter_timeout_ms, 2_000);
    let Problems(low) = parse("patience_ms = 999").expect_err("below the bound");
    assert_eq!(low, ["lease.patience_ms: 999 is outside 1000 to 600000 (line 3)"]);
    let Problems(both) = parse("waiter_timeout_ms = 1000\npatience_ms = 2000").expect_err("both keys");
    assert_eq!(both, ["lease.patience_ms: is the former name of waiter_timeout_ms: remove one of them (line 4)"]);
}

#[test]
fn timings_are_accepted_up_to_their_conflict() {
    let conflicts =
        |raft: &str| match Config::parse(&one_node(&format!("cluster = \"a\"\n[raft]\n{raft}")), Path::new("")) {
            Ok(_) => Vec::new(),
            Err(Problems(problems)) => problems,
        };
    for (valid, invalid, key) in [
        (
            "heartbeat_interval_ms = 80\nelection_timeout_min_ms = 240",
            "heartbeat_interval_ms = 80\nelection_timeout_min_ms = 239",
            "raft.heartbeat_interval_ms: 80 must fit 3 times",
        ),
        (
            "election_timeout_min_ms = 324",
            "election_timeout_min_ms = 325",
            "raft.election_timeout_min_ms: 325 must be below",
        ),
        (
            "snapshot_every = 2001",
            "snapshot_every = 2000",
            "raft.snapshot_keep: 2000 must be below snapshot_every, 2000",
        ),
    ] {
        assert_eq!(conflicts(valid), Vec::<String>::new(), "{valid}");
        let found = conflicts(invalid);
        assert!(matches!(found.as_slice(), [one] if one.starts_with(key)), "{invalid}: {found:?}");
    }
}

#[test]
fn default_ttl_is_between_min_and_max() {
    let parse = |default: u64, min: u64, max: u64| {
        let lease = format!("[lease]\ndefault_ttl_ms = {default}\nmin_ttl_ms = {min}\nmax_ttl_ms = {max}\n");
        Config::parse(&one_node(&format!("cluster = \"a\"\n{lease}")), Path::new("")).map(drop)
    };
    for default in [2_000, 3_000, 4_000] {
        assert_eq!(parse(default, 2_000, 4_000), Ok(()), "{default}");
    }
    for default in [1_999, 4_001] {
        let Problems(found) = parse(default, 2_000, 4_000).expect_err("the default is outside the bounds");
        let expected = format!("lease.default_ttl_ms: {default} must be from min_ttl_ms, 2000, to max_ttl_ms, 4000");
        assert!(matches!(found.as_slice(), [one] if one.starts_with(&expected)), "{default}: {found:?}");
    }
    let Problems(found) = parse(3_000, 4_001, 4_000).expect_err("min_ttl_ms is above max_ttl_ms");
    assert_eq!(found, ["lease.min_ttl_ms: 4001 must not be above max_ttl_ms, 4000 (line 4)"]);
}

#[test]
fn file_has_1_to_15_nodes_and_a_name_of_100_bytes() {
    let node = |id: usize| {
        let (http, peer) = (8000 + id, 9000 + id);
        format!("[[node]]\nid = {id}\nhttp = \"127.0.0.1:{http}\"\npeer = \"127.0.0.1:{peer}\"\ndata = \"{id}\"\n")
    };
    let file = |name: usize, nodes: usize| {
        format!("cluster = \"{}\"\n{}", "c".repeat(name), (1..=nodes).map(node).collect::<String>())
    };
    let config = Config::parse(&file(100, 15), Path::new("")).expect("both are at the limit");
    assert_eq!((config.cluster.len(), config.nodes.len()), (100, 15));
    assert_eq!(problems(&file(100, 16)), ["node: a cluster has 1 to 15 nodes, found 16 (line 2)"]);
    assert_eq!(problems(&file(100, 0)), ["node: a cluster has 1 to 15 nodes, found 0 (line 1)"]);
    let found = problems(&file(101, 15));
    assert!(matches!(found.as_slice(), [one] if one.contains("must be at most 100 letters")), "{found:?}");
}

#[test]
fn file_is_read_up_to_1_mib() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("cluster.toml");
    let mut text = one_node("cluster = \"a\"");
    text.push_str(&"#".repeat((1 << 20) - text.len()));
    std::fs::write(&path, &text).expect("write the file");
    assert_eq!(Config::load(&path).expect("the file is at the limit").cluster, "a");
    text.push('#');
    std::fs::write(&path, &text).expect("write the file");
    let refused = Config::load(&path).expect_err("the file is above the limit");
    assert!(matches!(refused, ConfigError::TooLarge { bytes: 1_048_577, .. }), "{refused}");
}

/// A pipe has no size, as an endless device.
#[test]
fn file_without_a_size_is_read_up_to_1_mib() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
    let text = one_node("cluster = \"a\"") + &"#".repeat(2 << 20);
    let writes = std::thread::spawn(move || writer.write_all(text.as_bytes()));
    let refused = Config::load(&path).expect_err("the file is above the limit");
    assert!(matches!(refused, ConfigError::TooLarge { .. }), "{refused}");
    drop(reader);
    assert!(writes.join().expect("no panic").is_err(), "the rest is not read");
}

#[test]
fn listeners_bind_the_reached_addresses_unless_others_are_set() {
    let text = one_node("cluster = \"a\"\nallow_insecure_network = true");
    let own = |text: &str| Config::parse(text, Path::new("")).expect("the file is valid").nodes[0].clone();
    let NodeEntry { listen_http, listen_peer, .. } = own(&text);
    assert_eq!((listen_http.as_str(), listen_peer.as_str()), ("127.0.0.1:7101", "127.0.0.1:7201"));
    let all = text.replace("data =", "listen_http = \"0.0.0.0:80\"\nlisten_peer = \"[::]:81\"\ndata =");
    let NodeEntry { http, listen_http, listen_peer, .. } = own(&all);
    assert_eq!(
        (http.as_str(), listen_http.as_str(), listen_peer.as_str()),
        ("127.0.0.1:7101", "0.0.0.0:80", "[::]:81")
    );
    for open in ["listen_http = \"0.0.0.0:80\"", "listen_peer = \"[::]:81\""] {
        let text = text.replace("data =", &format!("{open}\ndata ="));
        let warnings = Config::parse(&text, Path::new("")).expect("the network is allowed").warnings();
        let is_named = warnings.iter().any(|warning| warning.starts_with("allow_insecure_network"));
        assert!(is_named, "{open}: {warnings:?}");
    }
    for (listen, why) in [
        ("listen_http = \"0.0.0.0:80\"", "node[1].listen_http: \"0.0.0.0:80\" is not a loopback address"),
        ("listen_peer = \"10.0.0.1\"", "node[1].listen_peer: \"10.0.0.1\" must be host:port"),
        ("listen_http = \"127.0.0.1:1\"\nlisten_peer = \"127.0.0.1:1\"", "must differ from listen_http"),
        ("listen_http = \"127.0.0.1:7201\"", "node[1].listen_http: must differ from peer"),
        ("listen_peer = \"127.0.0.1:7101\"", "node[1].listen_peer: must differ from http"),
    ] {
        let text = one_node("cluster = \"a\"").replace("data =", &format!("{listen}\ndata ="));
        let found = problems(&text);
        assert!(matches!(found.as_slice(), [one] if one.contains(why)), "{found:?}");
    }
    assert!(problems(&text.replace("127.0.0.1:7101", "0.0.0.0:7101"))[0].contains("listen_http or listen_peer"));
}

const TLS: &str = r#"
cluster = "a"
[[node]]
id = 1
http = "10.0.0.1:1"
peer = "10.0.0.1:2"
data = "d"
[tls]
ca = "ca.pem"
cert = "node-{node}.pem"
key = "/keys/node-{node}.key"
"#;

#[test]
fn tls_on_all_connections_allows_other_addresses() {
    let parse = |rest: &str| Config::parse(&format!("{TLS}{rest}"), Path::new("/etc"));
    for client_cert in ["require", "optional"] {
        let config = parse(&format!("client_cert = \"{client_cert}\"")).expect("valid");
        let tls = config.tls.expect("the file has a section");
        assert_eq!(tls.cert, Path::new("/etc/node-{node}.pem"));
        assert_eq!(tls.key, Path::new("/keys/node-{node}.key"));
        for mode in ["allow", "prefer"] {
            let problems = parse(&format!("client_cert = \"{client_cert}\"\nmode = \"{mode}\""));
            let problems = problems.expect_err("other machines can send requests without TLS").0;
            let expected = "not all connections are encrypted";
            assert!(problems.iter().all(|problem| problem.contains(expected)), "{problems:?}");
            assert_eq!(problems.len(), 2, "{problems:?}");
        }
    }
}

#[test]
fn tls_settings_are_those_of_the_file() {
    let parse = |rest: &str| {
        let config = Config::parse(&format!("allow_insecure_network = true{TLS}{rest}"), Path::new("/etc"));
        config.expect("valid").tls.expect("the file has a section")
    };
    let files = TlsSettings::new("/etc/ca.pem", "/etc/node-{node}.pem", "/keys/node-{node}.key");
    assert_eq!(parse(""), files);
    let others = files.mode(TlsMode::Prefer).client_cert(ClientCertificates::Require).min_version(TlsVersion::V1_2);
    assert_eq!(parse("mode = \"prefer\"\nclient_cert = \"require\"\nmin_version = \"1.2\""), others);
}

#[test]
fn reached_listener_requires_an_identity() {
    let requires = |text: &str| {
        let config = Config::parse(text, Path::new("/etc")).expect("valid");
        config.requires_identity(&config.nodes[0])
    };
    let local = TLS.replace("10.0.0.1", "127.0.0.1");
    let bound = local.replace("data =", "listen_http = \"0.0.0.0:1\"\ndata =");
    let peers = TLS.replace("http = \"10.0.0.1", "http = \"127.0.0.1");
    assert_eq!([TLS, &local, &bound, &peers].map(requires), [true, false, true, false]);
    assert!(!requires(&format!("allow_insecure_network = true{TLS}")));
    assert!(!requires(&one_node("cluster = \"a\"")));
}

#[test]
fn tls_section_needs_all_files_and_known_words() {
    let problems = |section: &str| {
        let start =
            "cluster = \"a\"\nnode = [{ id = 1, http = \"127.0.0.1:1\", peer = \"127.0.0.1:2\", data = \"d\" }]\n";
        Config::parse(&format!("{start}{section}"), Path::new("")).expect_err("invalid").0.join("\n")
    };
    let found = problems("[tls]\nca = \"ca.pem\"\nmode = \"on\"\nmin_version = 1.3");
    for part in [
        "tls.cert: must be set (line 3)",
        "tls.key: must be set (line 3)",
        "tls.mode: unknown variant `on`, expected one of `allow`, `prefer`, `require` (line 5)",
        "tls.min_version: ",
    ] {
        assert!(found.contains(part), "{found}");
    }
    assert!(problems("[tls]\n").contains("tls.ca: must be set"), "an empty section does not mean: no TLS");
    assert!(problems("tls = [\"a\", \"b\", \"c\"]").contains("expected a table"));
}
