//! The HTTP client with the credential that it sends.

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{IntoUrl, Method, RequestBuilder};

use crate::access::AccessToken;

/// An HTTP client that adds the access token to each request. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    /// Sensitive: `Debug` does not show it.
    authorization: Option<HeaderValue>,
}

impl Http {
    pub fn new(client: reqwest::Client) -> Http {
        Http { client, authorization: None }
    }

    /// Uses another client with the same access token.
    #[cfg(feature = "tls")]
    pub fn with_client(self, client: reqwest::Client) -> Http {
        Http { client, ..self }
    }

    pub fn with_token(self, token: &AccessToken) -> Http {
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose())).expect("a token is ASCII");
        value.set_sensitive(true);
        Http { authorization: Some(value), ..self }
    }

    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    pub fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        let request = self.client.request(method, url);
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Endpoints, Remote};

    #[test]
    fn token_is_sent_and_not_shown() {
        let text = format!("tenure_{}c097aaa3", "a7".repeat(32));
        let http = Remote::new(Endpoints::default()).with_token(&text.parse().expect("valid")).http;
        let request = http.get("http://127.0.0.1:1/").build().expect("valid");
        assert_eq!(request.headers()[AUTHORIZATION], format!("Bearer {text}"));
        assert!(!format!("{http:?} {request:?}").contains("a7a7"), "{http:?} {request:?}");
    }
}
