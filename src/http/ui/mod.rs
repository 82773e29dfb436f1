//! The page `/ui`, with its scripts and styles. It is static and has no data, so it needs no credential: the scripts read the
//! API like any other client.
//!
//! All URLs of the page are relative, so it works below any path of a proxy or of a program that mounts the router.

use axum::extract::{FromRequestParts, Path};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::app::App;
use super::response::{self, ProblemResponse};
use crate::api::{Code, Problem};

/// Only files of this node run and load, and only this node gets requests.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of the page and of its files. A browser asks again at each visit, so it sees an upgrade at once.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        /// The name, the content type and the content of each file.
        const FILES: &[(&str, &str, &str)] = &[$(($name, $content_type, include_str!($name))),*];
    };
}

files! {
    "icon.svg": SVG,
    "style.css": CSS,
    "actions.js": SCRIPT,
    "api.js": SCRIPT,
    "detail.js": SCRIPT,
    "dialog.js": SCRIPT,
    "dom.js": SCRIPT,
    "filter.js": SCRIPT,
    "format.js": SCRIPT,
    "login.js": SCRIPT,
    "main.js": SCRIPT,
    "nodes.js": SCRIPT,
    "store.js": SCRIPT,
    "stream.js": SCRIPT,
    "sync.js": SCRIPT,
    "table.js": SCRIPT,
    "timeline.js": SCRIPT,
}

/// The `{file}` of a path.
pub(super) struct FileName(String);

/// Deserialized by field name: a path prefix of the mounting application may have parameters, too.
#[derive(Deserialize)]
struct FileParam {
    file: String,
}

impl FromRequestParts<App> for FileName {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<FileName, ProblemResponse> {
        let path = Path::<FileParam>::from_request_parts(parts, app).await;
        path.map(|Path(FileParam { file })| FileName(file))
            .map_err(|error| ProblemResponse::invalid(format!("path: {error}")))
    }
}

/// Get the web page that shows and operates the cluster.
#[utoipa::path(get, path = "/ui", tag = "status",
    responses((status = 200, description = "The page", body = String, content_type = "text/html")))]
pub(super) async fn page() -> Response {
    static_file(HTML, include_str!("index.html"))
}

/// Get a file of the web page.
#[utoipa::path(get, path = "/ui/{file}", tag = "status",
    params(("file" = String, Path, description = "The name of the file")),
    responses(
        (status = 200, description = "The file", body = String, content_type = "text/javascript"),
        (status = 404, description = "`not_found`: the page has no such file", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn file(FileName(name): FileName) -> Result<Response, ProblemResponse> {
    let found = FILES.iter().find(|(known, _, _)| *known == name);
    let (_, content_type, content) =
        found.ok_or_else(|| ProblemResponse::new(Code::NotFound, format!("the page /ui has no file {name:?}")))?;
    Ok(static_file(content_type, content))
}

/// The relative URLs of the page need its path without a slash at the end. The redirect is relative, too.
pub(super) async fn without_slash() -> impl IntoResponse {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../ui")])
}

fn static_file(content_type: &'static str, content: &'static str) -> Response {
    let mut response = response::with_type(StatusCode::OK, content_type, content);
    let headers = HEADERS.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_import_of_the_page_is_a_file() {
        let names: Vec<&str> = FILES.iter().map(|(name, _, _)| *name).collect();
        let scripts: Vec<_> = FILES.iter().filter(|(_, content_type, _)| *content_type == SCRIPT).collect();
        assert!(scripts.len() > 10, "the filter finds the scripts");
        for (file, _, content) in scripts {
            for import in content.lines().filter(|line| line.starts_with("import ")) {
                let path = import.split('"').nth(1).expect("an import names a file");
                let name = path.strip_prefix("./").expect("an import is relative");
                assert!(names.contains(&name), "{file} imports {name}");
            }
        }
    }

    #[test]
    fn page_has_no_inline_script_and_no_absolute_url() {
        let page = include_str!("index.html");
        for forbidden in ["style=", "<style", " onclick", "//", "src=\"/", "href=\"/"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=\"ui/").count());
    }
}
