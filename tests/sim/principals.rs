//! Two principals that use the same lease names and holder, while an administrator replaces their access tokens.
//!
//! Access control promises two things, whatever faults the run has:
//!
//! - Only the principal that acquired a lease renews or releases it.
//! - A revoked access token has no effect in a request that is sent after the revocation was acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::access::{AccessChange, AccessName, AccessToken, Caller, Denied, PrefixRight, Right, TokenHash};
use tenure::client::CallError;
use tenure::lease::{Acquire, Command, Outcome, Renewal};
use tenure::node::{Answer, Query, Request, RequestError, Response};
use tenure::testing::TestNode;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};
use tokio::task::JoinSet;

use super::judge::Broken;
use super::recording_client::{RecordingClient, SendOptions};
use super::world::{World, lock};

/// The leases of the principals. No other client uses them.
const LEASES: [&str; 2] = ["guarded/a", "guarded/b"];
const PREFIX: &str = "guarded/";
const PRINCIPALS: usize = 2;
/// Longer than any delay of a message.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause between two attempts of the same change.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Whether the principals work in the run of a seed. They have their own random numbers, so a seed keeps its other
/// choices.
pub fn work_in(seed: u64) -> bool {
    StdRng::seed_from_u64(seed ^ 0x6163_6365).random_bool(0.4)
}

/// The number of an access token. Each token of a run has another one.
type Key = u8;

/// The credentials of the principals, and the requests that succeeded.
#[derive(Default)]
pub struct Principals {
    next: Key,
    /// The access token that each principal uses.
    keys: [Option<Key>; PRINCIPALS],
    /// When the removal of each token was acknowledged.
    revoked: BTreeMap<Key, Duration>,
    /// The last token of each lease that a principal saw.
    seen: BTreeMap<LeaseName, FencingToken>,
    successes: Vec<Success>,
}

/// A request of a principal that was executed.
struct Success {
    principal: usize,
    key: Key,
    sent: Duration,
    /// The lease and the token of a change. A read has none.
    grant: Option<(LeaseName, FencingToken)>,
}

fn token(key: Key) -> TokenHash {
    TokenHash::of(&AccessToken::from_secret([key; 32]))
}

fn name(text: &str) -> AccessName {
    AccessName::new(text).expect("valid")
}

/// Sets up access control, and runs the principals until the future is dropped.
pub async fn run(world: Arc<World>) {
    let mut administrator = Administrator::new(world.clone());
    administrator.set_up().await;
    let mut workers = JoinSet::new();
    (0..PRINCIPALS).for_each(|principal| drop(workers.spawn(work(world.clone(), principal))));
    administrator.replace_tokens().await;
}

/// A program that embeds a node: it has all rights.
struct Administrator {
    world: Arc<World>,
    client: RecordingClient,
    rng: StdRng,
}

impl Administrator {
    fn new(world: Arc<World>) -> Administrator {
        let mut rng = world.rng(9_000);
        let at = world.random_node(&mut rng);
        let client = RecordingClient::new(world.clone(), at, world.rng(9_001));
        Administrator { world, client, rng }
    }

    async fn set_up(&mut self) {
        let permissions = [PrefixRight { right: Right::Hold, prefix: PREFIX.to_owned() }].into();
        self.change(AccessChange::SetRole { role: name("worker"), permissions }).await;
        for principal in 0..PRINCIPALS {
            let principal = name(&format!("p{principal}"));
            self.change(AccessChange::SetPrincipal { principal, roles: [name("worker")].into() }).await;
        }
        self.change(AccessChange::Enable(true)).await;
        self.world.count_work("access control on");
    }

    async fn replace_tokens(&mut self) {
        loop {
            let principal = self.rng.random_range(0..PRINCIPALS);
            let old = lock(&self.world.principals).keys[principal];
            if let Some(key) = old {
                self.change(AccessChange::RemoveToken(token(key).id())).await;
                let now = self.world.now();
                lock(&self.world.principals).revoked.insert(key, now);
                self.world.trace(|| format!("access token {key} of p{principal} is revoked"));
                self.world.count_work("access token revoked");
            }
            // Until then, the principal uses its revoked token.
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..500))).await;
            self.add_token(principal).await;
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..3_000))).await;
        }
    }

    /// Adds a new token. An attempt with an unknown outcome may add its token later, so that token is never used.
    async fn add_token(&mut self, principal: usize) {
        loop {
            let key = {
                let mut principals = lock(&self.world.principals);
                let Some(next) = principals.next.checked_add(1) else { return };
                principals.next = next;
                next
            };
            let change = AccessChange::AddToken {
                principal: name(&format!("p{principal}")),
                hash: token(key),
                created_wall_ms: 0,
            };
            if self.attempt(change).await.is_ok() {
                lock(&self.world.principals).keys[principal] = Some(key);
                return;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes a change that has the same effect when it is made twice.
    async fn change(&mut self, change: AccessChange) {
        loop {
            match self.attempt(change.clone()).await {
                // An earlier attempt was made.
                Ok(()) | Err(Some(Denied::NotFound(_))) => return,
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Sends a change to a random node. The error has the reason of a refusal by access control.
    async fn attempt(&mut self, change: AccessChange) -> Result<(), Option<Denied>> {
        self.client.set_node(self.world.random_node(&mut self.rng));
        self.world.trace(|| format!("node {} is asked for {change:?}", self.client.node()));
        let sent = send(&self.client, Caller::Program, Request::ChangeAccess(change)).await;
        self.world.trace(|| format!("the change of access control ended with {sent:?}"));
        match sent {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RequestError::Denied(denied))) => Err(Some(denied)),
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }
}

async fn send(
    client: &RecordingClient,
    caller: Caller,
    request: Request,
) -> Result<Result<Response, RequestError>, CallError> {
    let call = move |node: TestNode| -> futures_util::future::BoxFuture<'static, _> {
        Box::pin(async move { Ok(node.request_as(&caller, request).await) })
    };
    client.send(SendOptions::once(REQUEST_TIMEOUT), call).await
}

/// Sends the requests of one principal.
async fn work(world: Arc<World>, principal: usize) {
    let mut rng = world.rng(9_010 + principal as u64);
    let at: NodeId = world.random_node(&mut rng);
    let client = RecordingClient::new(world.clone(), at, world.rng(9_020 + principal as u64));
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..200))).await;
        if rng.random_bool(0.2) {
            client.set_node(world.random_node(&mut rng));
        }
        let lease = LeaseName::new(LEASES[rng.random_range(0..LEASES.len())]).expect("valid");
        // Mostly the same holder for both principals, as after a copied configuration.
        let holder = if rng.random_bool(0.8) { "shared".to_owned() } else { format!("p{principal}") };
        let holder = HolderId::new(holder).expect("valid");
        let (key, user, last) = {
            let principals = lock(&world.principals);
            let user = if world.plan.planted.shared_credentials { 0 } else { principal };
            let current = |user: usize| principals.keys[user];
            let (Some(key), Some(used)) = (current(principal), current(user)) else { continue };
            (key, used, principals.seen.get(&lease).copied())
        };
        // The planted bug of revoked tokens: the request has a valid one instead.
        let is_revoked = lock(&world.principals).revoked.contains_key(&key);
        let caller = if is_revoked && world.plan.planted.revoked_access_works {
            Caller::Program
        } else {
            Caller::Token(token(user))
        };
        let request = match (rng.random_range(0..100), last) {
            (0..40, _) => claim(&lease, holder, &mut rng),
            (40..75, Some(token)) => {
                let leases = vec![Renewal { name: lease.clone(), token, ttl: None }];
                Request::Change(Command::Renew { holder, leases })
            }
            (75..88, Some(token)) => Request::Change(Command::Release { name: lease.clone(), holder, token }),
            _ => Request::Read { query: Query::Lease(lease.clone()), consistency: world.local_read() },
        };
        let sent = world.now();
        world.trace(|| format!("p{principal} with access token {key} at {} sends {request:?}", client.node()));
        let answer = send(&client, caller, request.clone()).await;
        world.trace(|| format!("p{principal} gets {answer:?}"));
        let Ok(Ok(response)) = answer else {
            world.count_work("principal refused");
            continue;
        };
        note(&world, principal, key, sent, &lease, &request, &response.answer);
    }
}

fn claim(name: &LeaseName, holder: HolderId, rng: &mut StdRng) -> Request {
    Request::Acquire(Acquire {
        name: name.clone(),
        holder,
        ttl: Ttl::millis(rng.random_range(500..4_000)).expect("valid"),
        wait_ms: rng.random_bool(0.3).then(|| rng.random_range(10..2_000)),
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

/// Records the effect of an executed request.
fn note(
    world: &World,
    principal: usize,
    key: Key,
    sent: Duration,
    lease: &LeaseName,
    request: &Request,
    answer: &Answer,
) {
    let mut principals = lock(&world.principals);
    let (work, token) = match (answer, request) {
        (Answer::Lease(leases), _) => {
            if let Some(first) = leases.first() {
                principals.seen.insert(lease.clone(), first.token);
            }
            ("principal read", None)
        }
        (Answer::Outcome(Outcome::Held { lease: held, .. }), _) => {
            principals.seen.insert(lease.clone(), held.token);
            ("principal acquired", Some(held.token))
        }
        (Answer::Outcome(Outcome::Renewed(renewed)), _) => match &renewed[..] {
            [Ok(held)] => ("principal renewed", Some(held.token)),
            _ => ("principal lost", None),
        },
        (Answer::Outcome(Outcome::Released(true)), Request::Change(Command::Release { token, .. })) => {
            ("principal released", Some(*token))
        }
        _ => ("principal refused", None),
    };
    let grant = token.map(|token| (lease.clone(), token));
    principals.successes.push(Success { principal, key, sent, grant });
    world.count_work(work);
}

impl Principals {
    /// Checks both promises of access control.
    pub fn judge(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut owners = BTreeMap::new();
        for success in &self.successes {
            let Success { principal, key, sent, grant } = success;
            if let Some(at) = self.revoked.get(key).filter(|at| sent > *at) {
                let how = format!("p{principal} used access token {key} at {sent:?}, revoked at {at:?}");
                broken.push(Broken::of_cluster("revoked_access_ends", how));
            }
            let Some((name, token)) = grant else { continue };
            let owner = *owners.entry((name, token)).or_insert(*principal);
            if owner != *principal {
                let how = format!("p{principal} changed the grant {token:?} of p{owner}");
                broken.push(Broken::of_lease("owner_only", name.as_str(), how));
            }
        }
        broken
    }
}

/// Checks that all usable nodes have the same state of access control after the run.
pub fn check_replicas(world: &World) {
    let views: BTreeMap<_, _> =
        world.usable_nodes().into_iter().filter_map(|id| Some((id, world.node(id)?.access_view()))).collect();
    let mut others = views.values();
    let first = others.next();
    if others.any(|view| Some(view) != first) {
        world.report_violation("replicas_agree", format!("different states of access control: {views:?}"));
    }
}
