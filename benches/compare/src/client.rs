//! The operations that all three systems have, as one client.

use std::fmt;
use std::future::Future;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An answer that breaks a promise of the system. A repetition does not excuse it.
#[derive(Debug)]
pub struct WrongAnswer(pub String);

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongAnswer {}

/// The ttl of leases and sessions that no workload lets expire.
pub const TTL: Duration = Duration::from_secs(30);

pub trait Client: Sized + Send + 'static {
    /// A connection that clients share, or an address if they do not share.
    type Link: Clone + Send + Sync + 'static;

    /// Number of clients that share a link.
    const CLIENTS_PER_LINK: usize;

    fn link(address: &str) -> impl Future<Output = Result<Self::Link>> + Send;

    fn connect(link: &Self::Link) -> impl Future<Output = Result<Self>> + Send;

    /// Takes a free name. Returns a number that rises with each grant.
    fn acquire(&mut self, name: &str) -> impl Future<Output = Result<u64>> + Send;

    fn release(&mut self, name: &str, token: u64) -> impl Future<Output = Result<()>> + Send;

    /// Gets the lease or session that `renew` renews.
    fn hold(&mut self, name: &str) -> impl Future<Output = Result<()>> + Send;

    fn renew(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Reads the current holder of a name with a read that returns no old state. Returns the number of its grant.
    fn read(&mut self, name: &str) -> impl Future<Output = Result<u64>> + Send;

    /// A replicated write, which succeeds any number of times.
    fn write(&mut self, name: &str) -> impl Future<Output = Result<()>> + Send;

    /// Ends the session, so that it does not expire during a later measurement.
    fn close(self) -> impl Future<Output = Result<()>> + Send;

    /// Abandons a name after its grant. Returns the time from the request for the ttl until another client knows that
    /// the name is free.
    fn abandon(address: &str, name: &str, ttl: Duration) -> impl Future<Output = Result<Duration>> + Send;
}
