//! The instrument itself: that a power cut, as it is made here, loses what was not synced and nothing else. Without root
//! there is no file system to cut, and the tests say so.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::disk::Disk;

const RECORDS: usize = 200;

/// Appends records to a file, and closes it: the process that wrote them is gone, and all of them acknowledged.
fn write(path: &Path, sync: impl Fn(&File)) {
    let mut file = File::create(path).expect("the disk is the test's own");
    for number in 0..RECORDS {
        writeln!(file, "{number}").expect("there is room");
    }
    sync(&file);
}

fn survivors(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().filter(|line| !line.contains('\0')).count())
}

#[test]
fn a_power_cut_loses_what_was_not_synced_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        let refused = Disk::new(Path::new("/nowhere"), "disk");
        assert!(refused.is_err(), "only root makes disks");
        return;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let mut disk = Disk::new(folder.path(), "disk").expect("root makes disks");
    let (synced, unsynced) = (disk.path().join("synced"), disk.path().join("unsynced"));
    write(&synced, |file| file.sync_all().expect("a disk that works"));
    write(&unsynced, |_| ());
    assert_eq!(survivors(&unsynced), RECORDS, "it can be read as long as there is power");
    disk.cut().expect("it is mounted");
    assert!(File::create(disk.path().join("later")).is_err(), "nothing works behind the cut");
    disk.unmount().expect("nobody uses it");
    disk.mount().expect("what is left is whole");
    assert_eq!(survivors(&synced), RECORDS);
    assert_eq!(survivors(&unsynced), 0, "this must be lost, or the cut is none");
}
