//! Directories that the store refuses to open, and the error messages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use crate::storage::disk::directory::Directory;
use crate::storage::disk::migration::REMOVED_AT_SYNCS;
use crate::storage::disk::trees;
use crate::storage::record::{
    self, COMMITTED, CommittedV1, FLOOR, IDENTITY, PositionV1, RecordKind, SNAPSHOT, VOTE, VoteV1, chunk_key, log_key,
};

/// Creates a closed store with ten entries above a floor, a vote and a snapshot.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    wait(|done| storage.append(entries(2, 0..15, 100), done)).unwrap();
    wait(|done| storage.append(vec![entry(2, 15, 40_000)], done)).unwrap();
    wait(|done| storage.purge(at(2, 5), done)).unwrap();
    wait(|done| storage.save_vote(vote(2), done)).unwrap();
    write_snapshot(&storage, 50_000, 1);
    storage.close();
    dir
}

/// The same store in format 1: its log is in sled.
fn filled_in_format_1() -> tempfile::TempDir {
    let dir = filled();
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    let marker = fs::read_to_string(dir.path().join("TENURE")).unwrap();
    fs::write(dir.path().join("TENURE"), marker.replace("format = 2", "format = 1")).unwrap();
    change_tree(dir.path(), "log", |log| {
        for entry in entries(2, 6..15, 100).into_iter().chain([entry(2, 15, 40_000)]) {
            for part in 0..record::parts(&entry) {
                log.insert(log_key(entry.position.index, part), record::seal_part(&entry, part)).unwrap();
            }
        }
    });
    change_tree(dir.path(), "meta", |meta| {
        let vote = VoteV1 { term: 2, candidate: Some(1), committed: false };
        meta.insert(VOTE, record::seal(RecordKind::Vote, VOTE, &vote, 0)).unwrap();
        meta.insert(FLOOR, record::seal(RecordKind::Floor, FLOOR, &PositionV1 { term: 2, index: 5 }, 0)).unwrap();
        let committed = CommittedV1 { position: Some(PositionV1 { term: 2, index: 14 }) };
        meta.insert(COMMITTED, record::seal(RecordKind::Committed, COMMITTED, &committed, 0)).unwrap();
    });
    dir
}

/// The same store in format 1, with 6 MB more in its log. Also returns the log.
fn filled_with_6_mb_in_format_1() -> (tempfile::TempDir, Vec<LogRecord>) {
    let dir = filled_in_format_1();
    let more = entries(2, 16..166, 40_000);
    change_tree(dir.path(), "log", |log| {
        for entry in &more {
            for part in 0..record::parts(entry) {
                log.insert(log_key(entry.position.index, part), record::seal_part(entry, part)).unwrap();
            }
        }
    });
    let log = [entries(2, 6..15, 100), vec![entry(2, 15, 40_000)], more].concat();
    (dir, log)
}

/// Changes the first segment of a closed store.
fn change_segment(dir: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.join("log/0000000000000001.log");
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Changes one of sled's trees while the store is closed.
fn change_tree(dir: &Path, tree: &str, change: impl FnOnce(&sled::Tree)) {
    let config = sled::Config::new().path(dir.join("store")).segment_size(8 << 20).flush_every_ms(None);
    let db = config.open().unwrap();
    change(&db.open_tree(tree).unwrap());
    db.flush().unwrap();
    drop(db);
    // sled's threads release the file a moment after the last handle drops.
    let data = fs::File::open(dir.join("store/db")).unwrap();
    data.lock().unwrap();
}

fn assert_damaged(dir: &Path, what: &str) {
    let text = refusal(dir).to_string();
    let expected = format!(
        "data directory {} is damaged: {what}. Keep a copy, then remove this node from the cluster \
         and let it join again under a new id with an empty directory",
        dir.display()
    );
    assert_eq!(text, expected);
}

#[test]
fn foreign_directory_is_refused() {
    let dir = filled();
    let other = Identity { cluster: "other".to_string(), node: 2 };
    let error = DiskStorage::open(dir.path(), other).map(|_| ()).unwrap_err();
    let expected = format!(
        "data directory {} belongs to node 1 of cluster \"test\", not to node 2 of cluster \"other\": correct the \
         configuration, or give this node another directory",
        dir.path().display()
    );
    assert_eq!(error.to_string(), expected);
    // The identity record also protects a directory with a marker of another node.
    let marker = fs::read_to_string(dir.path().join("TENURE")).unwrap();
    fs::write(dir.path().join("TENURE"), marker.replace("node = 1", "node = 2")).unwrap();
    let other = Identity { cluster: "test".to_string(), node: 2 };
    let error = DiskStorage::open(dir.path(), other).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("belongs to node 1 of cluster \"test\", not to node 2"), "{error}");
}

#[test]
fn directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    assert_eq!(refusal(dir.path()), StorageError::InUse { dir: dir.path().to_path_buf() });
    wait(|done| storage.save_vote(vote(1), done)).expect("the first store stays usable");
}

#[test]
fn newer_format_is_refused() {
    let assert_newer = |dir: &Path, known: u32, what: &str| {
        let expected = format!(
            "data directory {} was written in format 7; this program supports formats up to {known}: run the version \
             that wrote it, or a newer one",
            dir.display()
        );
        assert_eq!(refusal(dir).to_string(), expected, "{what}");
    };
    let dir = filled();
    let marker = fs::read_to_string(dir.path().join("TENURE")).unwrap();
    fs::write(dir.path().join("TENURE"), marker.replace("format = 2", "format = 7")).unwrap();
    assert_newer(dir.path(), 2, "the marker");

    let dir = filled();
    change_segment(dir.path(), |bytes| {
        bytes[8] = 7;
        let crc = crc32fast::hash(&bytes[..36]);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    });
    assert_newer(dir.path(), 1, "a segment");

    for (tree, key) in [
        ("meta", IDENTITY.to_vec()),
        ("meta", VOTE.to_vec()),
        ("meta", FLOOR.to_vec()),
        ("meta", SNAPSHOT.to_vec()),
        ("log", log_key(9, 0).to_vec()),
        ("log", log_key(15, 0).to_vec()),
        ("log", log_key(15, 1).to_vec()),
        ("snap", chunk_key(1, 0).to_vec()),
    ] {
        let dir = filled_in_format_1();
        change_tree(dir.path(), tree, |tree| {
            let mut record = tree.get(&key).unwrap().unwrap().to_vec();
            record[0] = 7;
            tree.insert(&key, record).unwrap();
        });
        assert_newer(dir.path(), 1, &format!("{} of {tree}", key.escape_ascii()));
    }
}

#[test]
fn emptied_directory_is_refused() {
    let dir = filled();
    fs::remove_dir_all(dir.path().join("store")).unwrap();
    let text = refusal(dir.path()).to_string();
    let expected = format!(
        "data directory {} was initialised for node 1 of cluster \"test\" but its data is gone ({} is missing or \
         empty). Starting empty could lose votes and entries that the cluster counts on: restore the data, or remove \
         this node from the cluster and let it join again under a new id with an empty directory",
        dir.path().display(),
        dir.path().join("store/db").display()
    );
    assert_eq!(text, expected);
    assert_eq!(refusal(dir.path()).to_string(), expected, "the first attempt must not change the directory");

    for change in [
        |log: &Path| fs::remove_dir_all(log).unwrap(),
        |log: &Path| fs::remove_file(log.join("0000000000000001.log")).unwrap(),
    ] {
        let dir = filled();
        change(&dir.path().join("log"));
        let text = refusal(dir.path()).to_string();
        let expected = format!("but its data is gone ({} is missing or empty)", dir.path().join("log").display());
        assert!(text.contains(&expected), "{text}");
    }

    // sled opens a data file without a readable segment as a new database.
    fs::create_dir_all(dir.path().join("store")).unwrap();
    fs::write(dir.path().join("store/db"), vec![0; 1 << 20]).unwrap();
    let text = refusal(dir.path()).to_string();
    assert!(text.contains("but its data is gone (the store holds no record of it)"), "{text}");
}

/// The advice for lost data is to give the directory up. So a disk that cannot be read must not look like lost data.
#[test]
fn directory_that_cannot_be_read_does_not_count_as_emptied() {
    for name in ["store", "log", "RESTORING"] {
        let dir = filled();
        let item = dir.path().join(name);
        if item.exists() {
            fs::remove_dir_all(&item).unwrap();
        }
        // Each look at a link to itself fails.
        symlink(&item, &item).unwrap();
        match refusal(dir.path()) {
            StorageError::Io { path, .. } => assert!(path.starts_with(&item), "{name}: {}", path.display()),
            other => panic!("{name}: {other}"),
        }
    }
}

/// The paths and contents of all files below a directory.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let items = fs::read_dir(dir).unwrap().map(|item| item.unwrap().path());
    let (folders, here): (Vec<PathBuf>, Vec<PathBuf>) = items.partition(|path| path.is_dir());
    let below = folders.iter().flat_map(|folder| files(folder));
    below.chain(here.into_iter().map(|path| (path.clone(), fs::read(path).unwrap()))).collect()
}

#[test]
fn refused_directory_is_not_changed() {
    let marker = |dir: &Path, from: &str, to: &str| {
        let path = dir.join("TENURE");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    };
    type Change<'a> = &'a dyn Fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("another node", &|dir| marker(dir, "node = 1", "node = 2")),
        ("another cluster", &|dir| marker(dir, "\"test\"", "\"other\"")),
        ("a newer format", &|dir| marker(dir, "format = 2", "format = 3")),
        ("no readable marker", &|dir| marker(dir, "node = 1", "")),
        ("no store", &|dir| fs::remove_dir_all(dir.join("store")).unwrap()),
        ("no log", &|dir| fs::remove_dir_all(dir.join("log")).unwrap()),
    ];
    for (what, change) in changes {
        let dir = filled();
        change(dir.path());
        let before = files(dir.path());
        let refused = refusal(dir.path());
        assert!(files(dir.path()) == before, "{what}: {refused}");
    }
}

#[test]
fn data_without_marker_is_refused() {
    let dir = filled();
    fs::remove_file(dir.path().join("TENURE")).unwrap();
    let expected = format!(
        "data directory {} holds data but its file TENURE is missing: restore that file, or move the directory away \
         and let the node join again under a new id",
        dir.path().display()
    );
    assert_eq!(refusal(dir.path()).to_string(), expected);
}

/// sled's file alone does not show that the node has voted: a copy of `store/` must not start as a new node.
#[test]
fn store_without_marker_and_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    wait(|done| storage.save_vote(vote(2), done)).unwrap();
    storage.close();
    fs::remove_file(dir.path().join("TENURE")).unwrap();
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    for _ in 0..2 {
        assert_eq!(refusal(dir.path()), StorageError::Unmarked { dir: dir.path().to_path_buf() });
    }
    assert!(!dir.path().join("log").exists(), "a refused directory stays as it is");
}

#[test]
fn interrupted_first_start_counts_as_first() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close();
    fs::remove_file(dir.path().join("TENURE")).unwrap();
    assert!(DiskStorage::open_or_create(dir.path(), identity()).unwrap().is_new);
}

#[test]
fn log_gap_is_refused() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| drop(log.remove(log_key(9, 0)).unwrap()));
    assert_damaged(dir.path(), "the log has a gap: entry 9 is missing, the next entry is 10");
}

#[test]
fn log_that_starts_above_the_floor_is_refused() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| drop(log.remove(log_key(6, 0)).unwrap()));
    assert_damaged(dir.path(), "the log has a gap: entry 6 is missing, the next entry is 7");
    let dir = filled_in_format_1();
    change_tree(dir.path(), "meta", |meta| drop(meta.remove(FLOOR).unwrap()));
    assert!(refusal(dir.path()).to_string().contains("the log has a gap: entry 0 is missing"));
}

#[test]
fn entry_with_a_missing_middle_part_is_refused() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| drop(log.remove(log_key(15, 1)).unwrap()));
    assert_damaged(dir.path(), "log entry 15 has part 2: expected part 1");
}

#[test]
fn unfinished_last_entry_is_dropped() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| drop(log.remove(log_key(15, 9)).unwrap()));
    let storage = open(dir.path());
    assert_eq!(storage.recovered().last, Some(at(2, 14)));
    wait(|done| storage.append(entries(3, 15..16, 20), done)).unwrap();
    storage.close();
    assert_eq!(open(dir.path()).read_log(15, 16, 1).unwrap(), entries(3, 15..16, 20));
}

#[test]
fn flipped_bit_in_any_tree_is_refused() {
    for (tree, key, what) in [
        ("log", log_key(9, 0).to_vec(), "log entry 9 is a record with crc32 "),
        ("meta", VOTE.to_vec(), "the record \"vote\" is a record with crc32 "),
        ("meta", IDENTITY.to_vec(), "the record \"identity\" is a record with crc32 "),
        ("snap", chunk_key(1, 1).to_vec(), "chunk 1 of snapshot 1 is a record with crc32 "),
    ] {
        let dir = filled_in_format_1();
        change_tree(dir.path(), tree, |tree| {
            let mut record = tree.get(&key).unwrap().unwrap().to_vec();
            *record.last_mut().unwrap() ^= 4;
            tree.insert(&key, record).unwrap();
        });
        let text = refusal(dir.path()).to_string();
        assert!(text.contains(&format!("is damaged: {what}")), "{text}");
    }
}

#[test]
fn torn_record_is_refused() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| drop(log.insert(log_key(9, 0), vec![1, 5, 3]).unwrap()));
    assert_damaged(dir.path(), "log entry 9 is a torn record of 3 bytes");
}

#[test]
fn record_under_a_wrong_key_is_refused() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| {
        let ninth = log.get(log_key(9, 0)).unwrap().unwrap();
        log.insert(log_key(10, 0), ninth).unwrap();
    });
    let text = refusal(dir.path()).to_string();
    assert!(text.contains("is damaged: log entry 10 is a record with crc32 "), "{text}");
}

#[test]
fn unknown_record_is_refused() {
    let dir = filled();
    change_tree(dir.path(), "meta", |meta| drop(meta.insert("promise", vec![1]).unwrap()));
    assert_damaged(dir.path(), "an unknown record \"promise\"");
}

#[test]
fn snapshot_without_a_chunk_is_refused() {
    let dir = filled();
    change_tree(dir.path(), "snap", |snap| drop(snap.remove(chunk_key(1, 1)).unwrap()));
    assert_damaged(dir.path(), "chunk 1 of snapshot 1 is missing");
    let dir = filled();
    change_tree(dir.path(), "snap", |snap| drop(snap.remove(chunk_key(1, 12)).unwrap()));
    let text = refusal(dir.path()).to_string();
    assert!(text.contains("is damaged: snapshot 1 has 12 chunks, 49152 bytes and crc32 "), "{text}");
}

#[test]
fn torn_sled_page_table_is_removed() {
    let dir = filled();
    fs::write(dir.path().join("store/snap.00000000FFFFFFFF.generating"), b"torn").unwrap();
    assert_eq!(open(dir.path()).vote(), Some(vote(2)));
}

#[test]
fn whole_sled_page_table_with_its_old_name_is_used() {
    let dir = filled();
    open(dir.path()).close();
    let tables = || {
        let names = fs::read_dir(dir.path().join("store")).unwrap().map(|item| item.unwrap().path());
        names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("snap.")).collect::<Vec<_>>()
    };
    let [table] = tables().try_into().expect("sled keeps one page table");
    let old_name = std::path::PathBuf::from(format!("{}.generating", table.display()));
    let bytes = fs::read(&table).unwrap();
    fs::rename(&table, &old_name).unwrap();
    Directory::claim(dir.path()).unwrap().prepare_store().unwrap();
    assert_eq!(fs::read(&table).unwrap(), bytes, "without the table, sled would need segments that it has wiped");
    assert_eq!(open(dir.path()).vote(), Some(vote(2)));
    assert!(!old_name.exists() && tables().len() == 1);
}

#[test]
fn torn_sled_settings_are_replaced() {
    let dir = filled();
    let path = dir.path().join("store/conf");
    let settings = fs::read(&path).unwrap();
    for torn in [settings[..settings.len() - 4].to_vec(), settings[..20].to_vec(), vec![0; settings.len()], vec![]] {
        fs::write(&path, torn).unwrap();
        assert_eq!(open(dir.path()).vote(), Some(vote(2)));
        assert_eq!(fs::read(&path).unwrap(), settings);
    }
}

#[test]
fn unreadable_marker_is_refused() {
    let dir = filled();
    fs::write(dir.path().join("TENURE"), "").unwrap();
    assert_damaged(
        dir.path(),
        &format!("{} has no readable format, cluster and node: \"\"", dir.path().join("TENURE").display()),
    );
}

/// Recorded runs without syncs showed this: sled opened the store, and a later read panicked.
#[test]
fn panic_while_reading_counts_as_damage() {
    let dir = filled();
    let directory = Directory::claim(dir.path()).unwrap();
    let read = || -> Result<(), StorageError> { panic!("cannot find pid 4, planted by a test") };
    let error = trees::catch_panic(&directory, read).unwrap_err();
    let what = "cannot find pid 4, planted by a test".to_string();
    assert_eq!(error, StorageError::Corrupt { dir: dir.path().to_path_buf(), what });
}

#[test]
fn log_of_format_1_moves_into_segments() {
    let dir = filled_in_format_1();
    for _ in 0..2 {
        let storage = open(dir.path());
        let recovered = storage.recovered();
        assert_eq!(
            (recovered.purged, recovered.last, recovered.vote),
            (Some(at(2, 5)), Some(at(2, 15)), Some(vote(2)))
        );
        assert_eq!(recovered.committed, Some(at(2, 14)));
        assert!(recovered.snapshot.is_some());
        assert_eq!(whole_log(&storage), [entries(2, 6..15, 100), vec![entry(2, 15, 40_000)]].concat());
        storage.close();
        let marker = fs::read_to_string(dir.path().join("TENURE")).unwrap();
        assert!(marker.contains("format = 2"), "{marker}");
        change_tree(dir.path(), "log", |log| assert_eq!(log.len(), 0));
        change_tree(dir.path(), "meta", |meta| assert_eq!(meta.len(), 2, "identity and manifest"));
    }
}

#[test]
fn large_log_of_format_1_moves_into_several_segments() {
    let (dir, log) = filled_with_6_mb_in_format_1();
    for _ in 0..2 {
        let storage = open(dir.path());
        assert_eq!(storage.log_bounds(), (Some(at(2, 5)), Some(at(2, 165))));
        assert!(whole_log(&storage) == log, "the entries have changed");
        storage.close();
    }
    assert!(dir.path().join("log/0000000000000002.log").exists(), "a segment has 4 MiB");
}

/// sled can lose a large commit, and the chunks of the snapshot are in the same file.
#[test]
fn records_of_format_1_are_removed_in_small_parts() {
    let (dir, _) = filled_with_6_mb_in_format_1();
    REMOVED_AT_SYNCS.take();
    open(dir.path()).close();
    let removed = REMOVED_AT_SYNCS.take();
    assert!(removed.last().is_some_and(|all| *all > 1_000), "control: each entry has several parts: {removed:?}");
    let largest = removed.iter().scan(0, |before, count| Some(count - std::mem::replace(before, *count))).max();
    assert!(largest <= Some(64), "{largest:?} records share a sync");
}

/// Format 1 stored the floor of a purge, and then removed the entries. A crash in between left some of them.
#[test]
fn entries_of_format_1_below_the_floor_are_dropped() {
    let dir = filled_in_format_1();
    change_tree(dir.path(), "log", |log| {
        for entry in entries(2, 3..6, 100) {
            log.insert(log_key(entry.position.index, 0), record::seal_part(&entry, 0)).unwrap();
        }
    });
    let storage = open(dir.path());
    assert_eq!(storage.log_bounds(), (Some(at(2, 5)), Some(at(2, 15))));
    assert_eq!(whole_log(&storage), [entries(2, 6..15, 100), vec![entry(2, 15, 40_000)]].concat());
}

#[test]
fn migrated_log_without_its_name_is_used() {
    let dir = filled();
    fs::rename(dir.path().join("log"), dir.path().join("log.new")).unwrap();
    let storage = open(dir.path());
    assert_eq!(storage.recovered().last, Some(at(2, 15)));
    assert!(!dir.path().join("log.new").exists());
}

/// The record of the clean close follows the last group.
#[test]
fn flipped_bit_in_the_log_is_refused() {
    let used = {
        let dir = filled();
        let bytes = fs::read(dir.path().join("log/0000000000000001.log")).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        // The last record is the one of the close.
        end - 17
    };
    for byte in (512..used).step_by(2_003).chain([0, 30, 512, used - 1]) {
        let dir = filled();
        change_segment(dir.path(), |bytes| bytes[byte] ^= 4);
        let text = refusal(dir.path()).to_string();
        assert!(text.contains("is damaged: log segment 0000000000000001 has no valid "), "byte {byte}: {text}");
    }
}

#[test]
fn missing_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    wait(|done| storage.append(entries(1, 0..200, 100_000), done)).unwrap();
    storage.close();
    fs::remove_file(dir.path().join("log/0000000000000002.log")).unwrap();
    let text = refusal(dir.path()).to_string();
    assert!(text.contains("is damaged: the log has a gap: entry 0 is missing, the next entry is "), "{text}");
}
