//! The web page: its headers, its paths, and that it needs no credential.

use reqwest::redirect::Policy;
use reqwest::{Method, Response, StatusCode};
use tenure::access::{AccessName, Right};
use tenure::api::{Code, Permission, Problem};
use tenure::http::Settings;

use crate::served::Served;
use crate::steady::strict;

strict!(
    page_and_files_have_strict_headers,
    unknown_file_of_the_page_is_a_problem,
    head_of_the_page_has_no_body,
    slash_redirects_to_a_relative_path,
    page_needs_no_token_with_access_control,
);

async fn send(served: &Served, method: Method, path: &str) -> Response {
    let client = crate::plain_http::builder().redirect(Policy::none()).build().expect("plain options");
    client.request(method, format!("http://{}{path}", served.address)).send().await.expect("an answer")
}

async fn get(served: &Served, path: &str) -> Response {
    send(served, Method::GET, path).await
}

async fn page_and_files_have_strict_headers() {
    let served = Served::start(Settings::new(1)).await;
    for (path, content_type) in [
        ("/ui", "text/html; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/main.js", "text/javascript; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ] {
        let response = get(&served, path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(header("content-type"), content_type);
        let policy = header("content-security-policy");
        for directive in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.split("; ").any(|one| one == directive), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-cache");
        assert_eq!(header("x-tenure-node"), "1");
    }
}

async fn unknown_file_of_the_page_is_a_problem() {
    let served = Served::start(Settings::new(1)).await;
    for path in ["/ui/absent.js", "/ui/main.js/more", "/ui/..%2Fmod.rs", "/ui/mod.rs", "/ui/index.html"] {
        let response = get(&served, path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        let problem: Problem = response.json().await.expect("a problem");
        assert_eq!(problem.code, Code::NotFound, "{path}");
    }
    let wrong = send(&served, Method::POST, "/ui").await;
    assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED);
    let not_text = get(&served, "/ui/%FF").await;
    assert_eq!(not_text.status(), StatusCode::BAD_REQUEST);
}

async fn head_of_the_page_has_no_body() {
    let served = Served::start(Settings::new(1)).await;
    let whole = get(&served, "/ui").await.text().await.expect("text");
    let head = send(&served, Method::HEAD, "/ui").await;
    assert_eq!(head.status(), StatusCode::OK);
    assert_eq!(head.headers()["content-length"], whole.len().to_string());
    assert_eq!(head.text().await.expect("nothing"), "");
}

async fn slash_redirects_to_a_relative_path() {
    let served = Served::start(Settings::new(1)).await;
    let response = get(&served, "/ui/").await;
    assert_eq!(response.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(response.headers()["location"], "../ui");
}

async fn page_needs_no_token_with_access_control() {
    let served = Served::start(Settings::new(1)).await;
    let name = |text: &str| AccessName::new(text).expect("valid");
    let admin = [Permission::new(Right::Admin, "")];
    served.node.set_role(&name("admin"), &admin).await.expect("created");
    served.node.set_principal(&name("root"), &[name("admin")]).await.expect("created");
    served.node.create_token(&name("root"), None).await.expect("created");
    served.node.enable_access(true).await.expect("on");
    assert_eq!(get(&served, "/v1/cluster").await.status(), StatusCode::UNAUTHORIZED);
    for path in ["/ui", "/ui/main.js"] {
        assert_eq!(get(&served, path).await.status(), StatusCode::OK, "{path}");
    }
}
