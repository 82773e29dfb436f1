//! The path of a request. All text of a caller that becomes a part of a URL's path goes through [`path`].

use crate::api::{Code, Problem};
use crate::client::CallError;

/// Joins the segments of a path. Characters with a meaning in a URL are percent-encoded, so each text stays one segment.
pub(super) fn path(segments: &[&str]) -> String {
    let encoded: Vec<String> = segments.iter().map(|segment| encode(segment)).collect();
    encoded.join("/")
}

/// Refuses a segment that a URL cannot hold: it drops `.` and `..` in each encoding, and an empty one leads to another
/// route.
pub(super) fn check(path: &str) -> Result<(), CallError> {
    match path.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
        None => Ok(()),
        Some(segment) => {
            let detail = format!("{segment:?} is no name and no id");
            Err(CallError::Refused(Box::new(Problem::new(Code::Invalid, detail))))
        }
    }
}

fn encode(segment: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte);
    let encoded = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    segment.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::*;

    #[test]
    fn text_stays_one_segment_of_the_path() {
        let endpoint = Url::parse("http://127.0.0.1:7101/tenure/").expect("valid");
        for text in ["../roles/a", "..\\roles\\a", "%2e%2e", "%2F", "a?force=true", "a#b", " \t\n", "é", "//b"] {
            let url = endpoint.join(&path(&["v1", "access", "tokens", text])).expect("a valid path");
            let segments: Vec<&str> = url.path_segments().expect("it has a path").collect();
            assert_eq!(segments.len(), 5, "{text:?}: {url}");
            assert_eq!(segments[..4], ["tenure", "v1", "access", "tokens"], "{text:?}: {url}");
            assert_eq!((url.query(), url.fragment()), (None, None), "{text:?}: {url}");
            assert_eq!(url.host_str(), Some("127.0.0.1"), "{text:?}: {url}");
        }
    }

    #[test]
    fn names_are_readable_in_a_path() {
        assert_eq!(path(&["v1", "leases", "a-b.c_d:e/f", "renew"]), "v1/leases/a-b.c_d:e%2Ff/renew");
        assert_eq!(path(&["v1", "access", "roles", "ops@example"]), "v1/access/roles/ops@example");
    }
}
