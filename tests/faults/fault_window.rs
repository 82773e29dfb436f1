//! The period in which a fault was active.

use std::time::Duration;

use super::kind::Kind;

#[derive(Clone, Debug)]
pub struct FaultWindow {
    pub kind: Kind,
    pub from: Duration,
    /// `None` while the fault is active.
    pub until: Option<Duration>,
}

impl FaultWindow {
    pub fn overlaps(&self, from: Duration, until: Duration) -> bool {
        self.from < until && self.until.is_none_or(|end| from < end)
    }
}

/// The faults that were active at some time in a period.
pub fn during(windows: &[FaultWindow], from: Duration, until: Duration) -> String {
    let on: Vec<&str> =
        windows.iter().filter(|window| window.overlaps(from, until)).map(|window| window.kind.as_str()).collect();
    if on.is_empty() { "no fault".to_owned() } else { on.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_names_its_active_faults() {
        let ms = Duration::from_millis;
        let windows = [
            FaultWindow { kind: Kind::Kill, from: ms(10), until: Some(ms(20)) },
            FaultWindow { kind: Kind::Loss, from: ms(15), until: None },
        ];
        assert_eq!(during(&windows, ms(0), ms(10)), "no fault");
        assert_eq!(during(&windows, ms(0), ms(16)), "kill, loss");
        assert_eq!(during(&windows, ms(20), ms(30)), "loss");
    }
}
