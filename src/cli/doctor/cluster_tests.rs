use std::path::Path;
use std::time::Duration;

use super::*;
use crate::api::{DiskState, NodeClock, Timestamp, Version};
use crate::cli::doctor::clock::Measured;
use crate::cli::doctor::probe::ProbeTarget;

fn view(node: NodeId, quorum: bool) -> Cluster {
    let member = |id: NodeId| MemberInfo {
        id,
        role: if id == 1 { Role::Leader } else { Role::Follower },
        state: MemberState::Ok,
        http: format!("127.0.0.1:710{id}"),
        peer: format!("127.0.0.1:720{id}"),
        lag: Some(0),
        last_contact_ms: Some(20),
        certificate_expires_at: None,
        disk: Some(DiskState::Ok),
    };
    Cluster {
        cluster_id: "a".to_owned(),
        node,
        leader: quorum.then_some(1),
        quorum,
        term: 3,
        applied: 9,
        feature_level: 2,
        leader_changes: Vec::new(),
        clock: NodeClock { monotonic_ms: 5, wall: Timestamp::from_millis(0) },
        members: [1, 2, 3].map(member).to_vec(),
    }
}

fn answers(cluster: Result<Cluster, NoAnswer>) -> Answers {
    Answers {
        version: Ok(Version { version: env!("CARGO_PKG_VERSION").to_owned(), data_format: 1 }),
        files: Ok(OpenFiles { open: 48.0, limit: 65_536.0 }),
        clock: Ok(Measured::default()),
        cluster,
    }
}

fn reached(node: NodeId, cluster: Result<Cluster, NoAnswer>) -> Reached {
    let target = ProbeTarget::new(node, ListenerKind::Http, &format!("127.0.0.1:710{node}"), false);
    let connected = Ok(Duration::from_micros(200));
    Reached { target, connected, certificate: None, answers: Some(answers(cluster)) }
}

fn dead(node: NodeId) -> Reached {
    let connected = Err("Connection refused (os error 111)".to_owned());
    Reached { connected, answers: None, ..reached(node, Ok(view(node, true))) }
}

fn healthy() -> Vec<Reached> {
    [1, 2, 3].map(|node| reached(node, Ok(view(node, true)))).to_vec()
}

fn status(findings: &[Finding], name: &str) -> Status {
    let named = |finding: &&Finding| finding.name == name;
    findings.iter().find(named).unwrap_or_else(|| panic!("no {name}: {findings:?}")).status
}

fn config() -> Config {
    config_with("")
}

fn config_with(settings: &str) -> Config {
    let node = |id| {
        format!("[[node]]\nid = {id}\nhttp = \"127.0.0.1:710{id}\"\npeer = \"127.0.0.1:720{id}\"\ndata = \"{id}\"\n")
    };
    let nodes: String = (1..=3).map(node).collect();
    Config::parse(&format!("cluster = \"a\"\n{nodes}{settings}"), Path::new("")).expect("valid")
}

#[test]
fn healthy_cluster_has_no_finding() {
    let findings = judge(&healthy(), Some(&config()));
    let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.status != Status::Ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(findings.len(), 12, "{findings:?}");
}

#[test]
fn dead_node_is_a_problem_and_its_values_are_unknown() {
    let mut nodes = healthy();
    nodes[2] = dead(3);
    for seen in nodes.iter_mut().filter_map(|node| node.answers.as_mut()).filter_map(|node| node.cluster.as_mut().ok())
    {
        seen.members[2].state = MemberState::Unreachable;
    }
    let findings = judge(&nodes, None);
    assert_eq!(status(&findings, "quorum"), Status::Ok);
    assert_eq!(status(&findings, "address.3.http"), Status::Problem);
    assert_eq!(status(&findings, "member.3"), Status::Problem);
    for name in ["versions", "open_files.nodes", "clock.rate", "clock.wall"] {
        assert_eq!(status(&findings, name), Status::Unknown, "{name}");
    }
}

/// The file still lists a node that was removed.
#[test]
fn removed_node_is_not_to_be_started() {
    let mut nodes = healthy();
    nodes[2] = dead(3);
    nodes.iter_mut().filter_map(|node| node.answers.as_mut()?.cluster.as_mut().ok()).for_each(|seen| {
        seen.members.pop();
    });
    let findings = judge(&nodes, Some(&config()));
    let found = findings.iter().find(|finding| finding.name == "address.3.http").expect("it is checked");
    assert_eq!(found.status, Status::Warning, "{found:?}");
    assert!(found.advice.as_ref().is_some_and(|advice| advice.contains("do not start it again")), "{found:?}");
    assert_eq!(status(&findings, "configuration.members"), Status::Warning);
}

#[test]
fn lost_learner_is_not_to_be_replaced() {
    let advice = |role| {
        let mut seen = view(1, true).members.remove(2);
        (seen.role, seen.state) = (role, MemberState::Unreachable);
        member(&seen).advice.expect("it is a problem")
    };
    assert!(advice(Role::Follower).contains("`tenure member replace 3 --with ID`"), "{}", advice(Role::Follower));
    let learner = advice(Role::Learner);
    assert!(learner.contains("`tenure member remove 3`") && !learner.contains("replace"), "{learner}");
}

#[test]
fn quorum_is_judged_by_all_nodes() {
    let quorum_of = |nodes: &[Reached]| status(&judge(nodes, None), "quorum");
    assert_eq!(quorum_of(&[dead(1), dead(2), reached(3, Ok(view(3, false)))]), Status::Problem, "no majority");
    assert_eq!(quorum_of(&[dead(1), dead(2), dead(3)]), Status::Problem, "no answer");
    let isolated = [reached(1, Ok(view(1, true))), reached(2, Ok(view(2, true))), reached(3, Ok(view(3, false)))];
    assert_eq!(quorum_of(&isolated), Status::Problem, "node 3 is isolated");
    let denied = || Err(NoAnswer::Denied("no".to_owned()));
    assert_eq!(quorum_of(&[reached(1, denied()), dead(2)]), Status::Unknown, "no credential");
    let failed = reached(1, Err(NoAnswer::Failed("late".to_owned())));
    assert_eq!(quorum_of(&[failed]), Status::Problem, "it accepts connections and does not answer");
    assert_eq!(quorum_of(&[]), Status::Unknown, "no address");
}

/// The first node of the file is isolated, and sees no other member.
#[test]
fn members_are_judged_by_a_node_with_a_quorum() {
    let mut isolated = view(1, false);
    isolated.members[1..].iter_mut().for_each(|member| member.state = MemberState::Unreachable);
    let nodes = [reached(1, Ok(isolated)), reached(2, Ok(view(2, true))), reached(3, Ok(view(3, true)))];
    let findings = judge(&nodes, None);
    for member in ["member.2", "member.3"] {
        assert_eq!(status(&findings, member), Status::Ok, "{findings:?}");
    }
    assert_eq!(status(&findings, "quorum"), Status::Problem, "control: node 1 reaches no leader");
}

#[test]
fn address_must_belong_to_its_node() {
    let answer = |cluster| judge(&[reached(1, cluster)], None)[0].status;
    assert_eq!(answer(Ok(view(1, true))), Status::Ok);
    assert_eq!(answer(Ok(view(2, true))), Status::Problem, "another node answers");
    assert_eq!(answer(Err(NoAnswer::Failed("late".to_owned()))), Status::Problem);
    assert_eq!(answer(Err(NoAnswer::Denied("no".to_owned()))), Status::Ok, "it is reachable");
}

/// All clusters have nodes with the ids 1, 2 and 3.
#[test]
fn address_must_belong_to_a_node_of_the_cluster() {
    let with_other = |place: usize| {
        let mut nodes = healthy();
        let node = nodes[place].target.node.expect("it is given");
        let other = Cluster { cluster_id: "b".to_owned(), term: 99, ..view(node, true) };
        nodes[place].answers.as_mut().expect("it answers").cluster = Ok(other);
        nodes
    };
    let file = config();
    for config in [None, Some(&file)] {
        let findings = judge(&with_other(2), config);
        assert_eq!(status(&findings, "address.3.http"), Status::Problem, "{findings:?}");
        assert_eq!(status(&findings, "address.2.http"), Status::Ok, "{findings:?}");
        let quorum = findings.iter().find(|finding| finding.name == "quorum").expect("it is checked");
        assert_eq!(quorum.facts, "node 1 leads in term 3, as seen by node 1, 2");
    }
    // The file names the cluster, and not the first node that answers.
    let findings = judge(&with_other(0), Some(&file));
    assert_eq!(status(&findings, "address.1.http"), Status::Problem, "{findings:?}");
    assert_eq!(status(&findings, "configuration.members"), Status::Ok, "{findings:?}");
}

#[test]
fn members_are_judged_by_role_and_state() {
    let judged = |role, state| {
        let mut seen = view(1, true).members.remove(1);
        (seen.role, seen.state) = (role, state);
        member(&seen).status
    };
    assert_eq!(judged(Role::Follower, MemberState::Ok), Status::Ok);
    assert_eq!(judged(Role::Follower, MemberState::Lagging), Status::Warning);
    assert_eq!(judged(Role::Learner, MemberState::Ok), Status::Warning);
    assert_eq!(judged(Role::Learner, MemberState::Unreachable), Status::Problem);
    assert_eq!(judged(Role::Follower, MemberState::Other), Status::Unknown);
    assert_eq!(judged(Role::Other, MemberState::Ok), Status::Unknown);
    let stalled = MemberInfo { disk: Some(DiskState::Stalled), ..view(1, true).members.remove(1) };
    assert_eq!(member(&stalled).status, Status::Problem);
}

#[test]
fn file_must_describe_the_cluster() {
    let compared = |change: fn(&mut Cluster)| {
        let mut seen = view(1, true);
        change(&mut seen);
        let finding = same_cluster(&config(), &seen);
        (finding.status, finding.facts)
    };
    assert_eq!(compared(|_| {}).0, Status::Ok);
    assert_eq!(compared(|seen| seen.cluster_id = "b".to_owned()).0, Status::Problem);
    let moved = compared(|seen| seen.members[2].peer = "127.0.0.1:9".to_owned());
    assert_eq!(moved, (Status::Warning, "node 3 has 127.0.0.1:7103 and 127.0.0.1:9 in the cluster".to_owned()));
    let replaced = compared(|seen| seen.members[0].id = 4);
    assert_eq!(replaced, (Status::Warning, "the file lacks node 4; node 1 of the file is no member".to_owned()));
}

#[test]
fn versions_and_formats_must_be_equal() {
    let judged = |version: &str, data_format| {
        let mut nodes = healthy();
        let answers = nodes[1].answers.as_mut().expect("it answers");
        answers.version = Ok(Version { version: version.to_owned(), data_format });
        status(&judge(&nodes, None), "versions")
    };
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(judged(own, 1), Status::Ok);
    assert_eq!(judged("9.9.9", 1), Status::Warning);
    assert_eq!(judged(own, 2), Status::Warning);
}

#[test]
fn clock_rates_differ_by_at_most_the_drift_of_the_file() {
    let mut nodes = healthy();
    nodes[1].answers.as_mut().expect("it answers").clock = Ok(Measured { rate: 0.003, ..Measured::default() });
    let judged = |config: Option<&Config>| status(&judge(&nodes, config), "clock.rate");
    assert_eq!(judged(Some(&config_with("[raft]\ndrift_permille = 2\n"))), Status::Problem);
    assert_eq!(judged(Some(&config())), Status::Ok, "the default is 10");
    assert_eq!(judged(None), Status::Ok);
}

#[test]
fn open_files_must_have_room() {
    let judged = |open, limit| {
        let mut nodes = healthy();
        nodes[1].answers.as_mut().expect("it answers").files = Ok(OpenFiles { open, limit });
        status(&judge(&nodes, Some(&config())), "open_files.nodes")
    };
    assert_eq!(judged(100.0, 25_512.0), Status::Ok);
    assert_eq!(judged(100.0, 25_511.0), Status::Warning, "no room for max_connections");
    assert_eq!(judged(80_000.0, 100_000.0), Status::Ok, "80 % are in use");
    assert_eq!(judged(80_001.0, 100_000.0), Status::Warning, "more than 80 % are in use");
    assert_eq!(judged(90_000.0, f64::INFINITY), Status::Ok);
}

#[test]
fn open_files_must_have_room_for_the_clients_of_the_file() {
    let config = config_with("[http]\nmax_connections = 100000\n");
    let judged = |limit| {
        let mut nodes = healthy();
        for answers in nodes.iter_mut().filter_map(|node| node.answers.as_mut()) {
            answers.files = Ok(OpenFiles { open: 100.0, limit });
        }
        status(&judge(&nodes, Some(&config)), "open_files.nodes")
    };
    assert_eq!(judged(100_512.0), Status::Ok);
    assert_eq!(judged(100_511.0), Status::Warning, "no room for max_connections");
}
