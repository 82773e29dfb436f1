//! etcd over gRPC, as its package `concurrency` does it: each client has one lease as its session. An acquire is a
//! transaction that creates a key with the lease if the key does not exist. A release deletes the key.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::client::{Client, Result};
use crate::etcd_messages::*;
use crate::grpc::{Call, Link};

/// The lease of a session outlives each workload, so no keep-alive runs beside the measured requests.
const SESSION_TTL_S: i64 = 600;

pub struct Etcd {
    link: Link,
    /// The session, which the first acquire starts.
    lease: Option<i64>,
    keep_alive: Option<Call<LeaseKeepAliveResponse>>,
}

impl Client for Etcd {
    type Link = Link;
    /// Callers of etcd's client library share a connection.
    const CLIENTS_PER_LINK: usize = 16;

    async fn link(address: &str) -> Result<Link> {
        Link::open(address).await
    }

    async fn connect(link: &Link) -> Result<Etcd> {
        Ok(Etcd { link: link.clone(), lease: None, keep_alive: None })
    }

    async fn acquire(&mut self, name: &str) -> Result<u64> {
        let lease = self.session().await?;
        create(&self.link, name, lease).await
    }

    async fn release(&mut self, name: &str, _token: u64) -> Result<()> {
        let request = KeyRequest { key: Bytes::copy_from_slice(name.as_bytes()) };
        let answer: DeleteRangeResponse = self.link.call("/etcdserverpb.KV/DeleteRange", &request).await?;
        match answer.deleted {
            1 => Ok(()),
            deleted => Err(format!("the release of {name} deleted {deleted} keys").into()),
        }
    }

    async fn hold(&mut self, _name: &str) -> Result<()> {
        self.session().await?;
        self.keep_alive = Some(self.link.start("/etcdserverpb.Lease/LeaseKeepAlive").await?);
        Ok(())
    }

    /// etcd's leader answers from memory: it replicates no renewal.
    async fn renew(&mut self) -> Result<()> {
        let (Some(id), Some(keep_alive)) = (self.lease, &mut self.keep_alive) else {
            return Err("nothing is held".into());
        };
        keep_alive.send(&LeaseId { id })?;
        let answer = keep_alive.next().await?.ok_or("the stream of keep-alives ended")?;
        if (answer.id, answer.ttl) != (id, SESSION_TTL_S) {
            return Err(format!("lease {} has a ttl of {} s: expected lease {id}", answer.id, answer.ttl).into());
        }
        Ok(())
    }

    async fn read(&mut self, name: &str) -> Result<u64> {
        let request = KeyRequest { key: Bytes::copy_from_slice(name.as_bytes()) };
        let answer: RangeResponse = self.link.call("/etcdserverpb.KV/Range", &request).await?;
        let value = answer.kvs.first().ok_or_else(|| format!("the key {name} does not exist"))?;
        Ok(value.create_revision.try_into()?)
    }

    async fn write(&mut self, name: &str) -> Result<()> {
        let key = Bytes::copy_from_slice(name.as_bytes());
        let request = PutRequest { key, value: Bytes::from_static(b"prober"), lease: 0 };
        self.link.call::<PutResponse>("/etcdserverpb.KV/Put", &request).await?;
        Ok(())
    }

    async fn close(self) -> Result<()> {
        if let Some(id) = self.lease {
            self.link.call::<LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", &LeaseId { id }).await?;
        }
        Ok(())
    }

    async fn abandon(address: &str, name: &str, ttl: Duration) -> Result<Duration> {
        let link = Link::open(address).await?;
        let mut watch: Call<WatchResponse> = Link::open(address).await?.start("/etcdserverpb.Watch/Watch").await?;
        let key = KeyRequest { key: Bytes::copy_from_slice(name.as_bytes()) };
        watch.send(&WatchRequest { kind: Some(WatchRequestKind::Create(key)) })?;
        if !watch.next().await?.ok_or("the watch ended")?.created {
            return Err("the watch was not created".into());
        }
        let sent = Instant::now();
        let lease = grant(&link, ttl.as_secs() as i64).await?;
        create(&link, name, lease).await?;
        loop {
            let answer = watch.next().await?.ok_or("the watch ended")?;
            if answer.events.iter().any(|event| event.kind == EVENT_DELETE) {
                return Ok(sent.elapsed());
            }
        }
    }
}

impl Etcd {
    async fn session(&mut self) -> Result<i64> {
        match self.lease {
            Some(id) => Ok(id),
            None => Ok(*self.lease.insert(grant(&self.link, SESSION_TTL_S).await?)),
        }
    }
}

async fn grant(link: &Link, ttl: i64) -> Result<i64> {
    let answer: LeaseGrantResponse = link.call("/etcdserverpb.Lease/LeaseGrant", &LeaseGrantRequest { ttl }).await?;
    match answer.ttl == ttl {
        true => Ok(answer.id),
        false => Err(format!("etcd granted a ttl of {} s: expected {ttl} s", answer.ttl).into()),
    }
}

/// Creates the key. Returns the revision, which is the fencing token of etcd's documentation.
async fn create(link: &Link, name: &str, lease: i64) -> Result<u64> {
    let key = Bytes::copy_from_slice(name.as_bytes());
    let to = Some(CompareTo::CreateRevision(0));
    let compare = vec![Compare { target: TARGET_CREATE, key: key.clone(), to }];
    let put = PutRequest { key, value: Bytes::from_static(b"holder"), lease };
    let success = vec![RequestOp { kind: Some(RequestOpKind::Put(put)) }];
    let answer: TxnResponse = link.call("/etcdserverpb.KV/Txn", &TxnRequest { compare, success }).await?;
    match answer.header {
        Some(header) if answer.succeeded => Ok(header.revision.try_into()?),
        _ => Err(format!("the key {name} exists").into()),
    }
}
