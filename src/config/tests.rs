use super::*;

const THREE: &str = include_str!("../../cluster.toml");

fn problems(text: &str) -> Vec<String> {
    Config::parse(text, Path::new("/etc/tenure")).expect_err("the text has problems").0
}

fn one_node(rest: &str) -> String {
    format!("{rest}\n[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"127.0.0.1:7201\"\ndata = \"data/1\"\n")
}

#[test]
fn the_example_is_a_working_three_node_cluster_with_every_key_at_its_default() {
    let config = Config::parse(THREE, Path::new("/etc/tenure")).expect("the example works");
    let dev = Config::dev(Path::new("/etc/tenure/data"));
    assert_eq!(config, Config { cluster: "local".to_owned(), ..dev });
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn every_commented_setting_of_the_example_is_known_and_shows_its_default() {
    let setting = |line: &str| line.starts_with('#') && line.contains(" = ") && !line.starts_with("# ");
    let open = THREE.lines().map(|line| if setting(line) { &line[1..] } else { line }).collect::<Vec<_>>().join("\n");
    assert_ne!(open, THREE);
    let closed = Config::parse(THREE, Path::new("")).expect("the example works");
    let opened = Config::parse(&open, Path::new("")).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(opened, closed);
}

#[test]
fn relative_paths_start_at_the_files_folder_and_absolute_ones_stay() {
    let text = one_node("cluster = \"a\"").replace("data/1", "/var/lib/tenure");
    let config = Config::parse(&text, Path::new("/etc/tenure")).expect("it is fine");
    assert_eq!(config.nodes[0].data, Path::new("/var/lib/tenure"));
    let config = Config::parse(&one_node("cluster = \"a\""), Path::new("/etc/tenure")).expect("it is fine");
    assert_eq!(config.nodes[0].data, Path::new("/etc/tenure/data/1"));
}

#[test]
fn every_problem_is_reported_at_once_with_its_key() {
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
        [tls]
        "#,
    );
    let keys: Vec<&str> = found.iter().map(|problem| problem.split(": ").next().unwrap_or_default()).collect();
    assert_eq!(
        keys,
        [
            "cluster",
            "node[1].id",
            "node[1].http",
            "node[1].peer",
            "node[1].data",
            "node[1].colour",
            "raft.profile",
            "raft.election_timeout_min_ms",
            "raft.heartbeat_interval_ms",
            "lease.default_ttl_ms",
            "lease.min_ttl_ms",
            "lease.history",
            "clutser",
            "tls"
        ]
        .as_slice(),
        "{found:#?}"
    );
}

#[test]
fn nodes_do_not_share_ids_addresses_or_folders() {
    let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"127.0.0.1:7101\"\ndata = \"data\"\n";
    let found = problems(&format!("cluster = \"a\"\n{node}{node}"));
    assert_eq!(
        found,
        [
            "node: id 1 is given 2 times; every node needs its own",
            "node: address 127.0.0.1:7101 is given 4 times; every node needs its own",
            "node: data /etc/tenure/data is given 2 times; every node needs its own",
        ]
    );
}

#[test]
fn an_open_network_must_be_asked_for() {
    let text = one_node("cluster = \"a\"").replace("127.0.0.1:7101", "10.0.0.1:7101");
    let found = problems(&text);
    assert!(matches!(found.as_slice(), [one] if one.contains("allow_insecure_network = true")), "{found:?}");
    let config = Config::parse(&format!("allow_insecure_network = true\n{text}"), Path::new("")).expect("asked for");
    assert!(config.warnings().iter().any(|warning| warning.starts_with("allow_insecure_network")));
}

#[test]
fn a_profile_is_a_base_that_single_timings_change() {
    let config = Config::parse(
        &format!("{}\n[raft]\nprofile = \"wan\"\nheartbeat_interval_ms = 400", one_node("cluster = \"a\"")),
        Path::new(""),
    )
    .expect("it is fine");
    assert_eq!(config.raft, RaftTimings { heartbeat_interval_ms: 400, ..RaftTimings::wan() });
}

#[test]
fn a_broken_file_says_where() {
    let found = problems("cluster = ");
    assert!(matches!(found.as_slice(), [one] if one.contains("line 1")), "{found:?}");
    let missing = Config::load(Path::new("/nowhere/cluster.toml")).expect_err("there is no such file");
    assert!(missing.to_string().starts_with("cannot read /nowhere/cluster.toml"), "{missing}");
}
