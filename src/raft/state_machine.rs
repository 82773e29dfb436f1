//! openraft's state machine over a [`Replica`].
//!
//! The state lives in memory and is rebuilt from the last snapshot and the log. A snapshot is taken from a view that
//! shares structure with the state, and encoded on another thread: applies go on meanwhile.

use std::io;

use futures_util::{Stream, TryStreamExt};
use openraft::alias::{LogIdOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use tokio::sync::oneshot;

use super::log::io_error;
use super::replica::{Replica, State};
use super::snapshot::{self, Meta, SnapshotData};
use super::types::{SnapshotMeta, TypeConfig};
use crate::storage::{SnapshotManifest, Storage, StorageError, codec};

/// Largest description of a snapshot, in bytes.
const MAX_META_BYTES: usize = 16 << 10;

#[derive(Clone)]
pub struct StateMachine<S> {
    replica: Replica,
    storage: S,
}

pub struct SnapshotBuilder<S> {
    view: State,
    storage: S,
}

impl<S: Storage> StateMachine<S> {
    pub fn new(replica: Replica, storage: S) -> StateMachine<S> {
        StateMachine { replica, storage }
    }
}

impl<S: Storage> RaftStateMachine<TypeConfig> for StateMachine<S> {
    type SnapshotData = SnapshotData<S>;
    type SnapshotBuilder = SnapshotBuilder<S>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        Ok(self.replica.read(|state| (state.applied, state.membership.clone())))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = self.replica.apply(&entry)?;
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        self.replica.publish();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<S> {
        SnapshotBuilder { view: self.replica.view(), storage: self.storage.clone() }
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta, data: SnapshotData<S>) -> io::Result<()> {
        let state = match data {
            SnapshotData::Stored { store, manifest } => {
                let own = self.storage.snapshot();
                let (from, wanted) = (store.clone(), manifest.clone());
                let state = blocking::<S, _>(move || Ok(snapshot::load(&from, &wanted)?)).await?;
                // Passed on by hand, it is not in the own store yet.
                if own != Some(manifest) {
                    write_durably(&state, &self.storage).await?;
                }
                state
            }
            SnapshotData::Received { writer, state } => {
                let meta = codec::encode(&Meta::of(&state));
                writer.finish_durable(meta).await.map_err(io_error)?;
                *state
            }
        };
        self.replica.replace(state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData<S>>>> {
        self.storage.snapshot().map(|manifest| stored(&self.storage, manifest)).transpose()
    }
}

impl<S: Storage> RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder<S> {
    type SnapshotData = SnapshotData<S>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData<S>>> {
        let manifest = write_durably(&self.view, &self.storage).await?;
        stored(&self.storage, manifest)
    }
}

async fn write_durably<S: Storage>(view: &State, storage: &S) -> io::Result<SnapshotManifest> {
    let (view, storage) = (view.clone(), storage.clone());
    let (done, durable) = oneshot::channel();
    let written = blocking::<S, _>(move || {
        let mut writer = storage.begin_snapshot().map_err(io_error)?;
        snapshot::write(&view, &mut writer).map_err(io_error)?;
        let done = Box::new(move |result| drop(done.send(result)));
        writer.finish(codec::encode(&Meta::of(&view)), done).map_err(io_error)
    });
    let manifest = written.await?;
    durable.await.unwrap_or(Err(StorageError::Closed)).map_err(io_error)?;
    Ok(manifest)
}

fn stored<S: Storage>(storage: &S, manifest: SnapshotManifest) -> io::Result<SnapshotOf<TypeConfig, SnapshotData<S>>> {
    let meta: Meta = codec::decode(&manifest.meta, MAX_META_BYTES).map_err(io::Error::other)?;
    Ok(Snapshot { meta: meta.snapshot_meta()?, snapshot: SnapshotData::Stored { store: storage.clone(), manifest } })
}

/// Runs what can wait for the disk where it holds nobody up.
pub(super) async fn blocking<S: Storage, T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if S::BLOCKS { tokio::task::spawn_blocking(work).await.map_err(io::Error::other)? } else { work() }
}
