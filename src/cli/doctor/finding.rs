//! The result of one check.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// The check could not find out.
    Unknown,
    Warning,
    Problem,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Unknown => "unknown",
            Status::Warning => "warning",
            Status::Problem => "problem",
        }
    }
}

/// The action if nodes do not answer. Their addresses have findings with the reason.
const REPEAT: &str = "repeat this when all nodes answer this client";

/// The result of one check. With `-o json`, the output is an array of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub status: Status,
    /// The check and its subject, separated by dots, for instance `address.1.http`.
    pub name: String,
    /// One line.
    pub facts: String,
    /// One line: the action of the operator. `None` if the status is [`Status::Ok`].
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(name: impl Into<String>, facts: impl AsRef<str>) -> Finding {
        Finding::new(Status::Ok, name, facts, "")
    }

    /// A success has no advice.
    pub fn new(status: Status, name: impl Into<String>, facts: impl AsRef<str>, advice: impl AsRef<str>) -> Finding {
        let advice = (status != Status::Ok).then(|| one_line(advice.as_ref()));
        Finding { status, name: name.into(), facts: one_line(facts.as_ref()), advice }
    }

    /// The result of a check of all nodes. It is unknown if a node does not answer, and the others have no problem.
    pub fn of_nodes(status: Status, name: &str, facts: String, advice: &str) -> Finding {
        let advice = if status == Status::Unknown { REPEAT } else { advice };
        Finding::new(status, name, facts, advice)
    }

    pub fn problem(name: impl Into<String>, facts: impl AsRef<str>, advice: impl AsRef<str>) -> Finding {
        Finding::new(Status::Problem, name, facts, advice)
    }

    pub fn warning(name: impl Into<String>, facts: impl AsRef<str>, advice: impl AsRef<str>) -> Finding {
        Finding::new(Status::Warning, name, facts, advice)
    }

    pub fn unknown(name: impl Into<String>, facts: impl AsRef<str>, advice: impl AsRef<str>) -> Finding {
        Finding::new(Status::Unknown, name, facts, advice)
    }
}

/// Joins lines, so that each check has one line of facts.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").replace(":; ", ": ")
}

/// The findings as text: one line each, and a second one with the advice.
pub fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { status, name, facts, advice } in findings {
        text.push_str(&format!("{:<7}  {name:<width$}  {facts}\n", status.as_str()));
        if let Some(advice) = advice {
            text.push_str(&format!("{:9}do: {advice}\n", ""));
        }
    }
    text
}

/// The message for findings with a problem.
pub fn problems(findings: &[Finding]) -> Option<String> {
    let names: Vec<&str> =
        findings.iter().filter(|finding| finding.status == Status::Problem).map(|finding| &*finding.name).collect();
    match names.len() {
        0 => None,
        1 => Some(format!("1 problem: {}", names[0])),
        count => Some(format!("{count} problems: {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_has_one_line_and_its_advice_a_second() {
        let findings = [
            Finding::ok("quorum", "node 1 leads"),
            Finding::problem("configuration", "a is invalid:\n  x: must be set\n  y: 3\n", "correct the file"),
        ];
        let expected = "ok       quorum         node 1 leads\n\
                        problem  configuration  a is invalid: x: must be set; y: 3\n         do: correct the file\n";
        assert_eq!(render(&findings), expected);
    }

    #[test]
    fn only_problems_count_as_problems() {
        let finding = |status| Finding::new(status, "a", "", "");
        let harmless = [Status::Ok, Status::Unknown, Status::Warning].map(finding);
        assert_eq!(problems(&harmless), None);
        assert_eq!(problems(&[finding(Status::Problem)]).as_deref(), Some("1 problem: a"));
        let both = [finding(Status::Problem), finding(Status::Ok), finding(Status::Problem)];
        assert_eq!(problems(&both).as_deref(), Some("2 problems: a, a"));
    }

    #[test]
    fn json_has_a_stable_shape() {
        let json = |finding: Finding| serde_json::to_string(&finding).expect("plain");
        assert_eq!(json(Finding::ok("a", "b")), r#"{"status":"ok","name":"a","facts":"b","advice":null}"#);
        let unknown = json(Finding::unknown("a", "b", "c"));
        assert_eq!(unknown, r#"{"status":"unknown","name":"a","facts":"b","advice":"c"}"#);
    }
}
