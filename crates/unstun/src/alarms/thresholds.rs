//! Thresholds: what the rules have for each object.

use api::name::Tag;
use api::{AlarmRule, AlarmRuleShown, AlarmThreshold};

/// Returns the threshold of a rule for an object; None if the rule is off for it. A rule without a number has 1.
pub(super) fn of(thresholds: &[AlarmThreshold], rule: AlarmRule, vm: Option<(&str, &[Tag])>) -> Option<u64> {
    let own = thresholds.iter().filter(|one| one.rule == rule);
    let rank = |one: &AlarmThreshold| match (&one.vm, &one.tag, vm) {
        (Some(glob), _, Some((name, _))) if glob.matches(name) => Some(2),
        (None, Some(tag), Some((_, tags))) if tags.contains(tag) => Some(1),
        (None, None, _) => Some(0),
        _ => None,
    };
    // Of several with the same rank, the last one that was set applies.
    let found = own.filter_map(|one| Some((rank(one)?, one.value))).max_by_key(|(rank, _)| *rank);
    match found {
        Some((_, value)) => value,
        None => Some(rule.threshold().map_or(1, |(value, _)| value)),
    }
}

/// Sets a threshold, which becomes the last one.
pub(super) fn set(thresholds: &mut Vec<AlarmThreshold>, wanted: AlarmThreshold) {
    thresholds.retain(|one| (one.rule, &one.vm, &one.tag) != (wanted.rule, &wanted.vm, &wanted.tag));
    thresholds.push(wanted);
}

pub(super) fn shown(thresholds: &[AlarmThreshold]) -> Vec<AlarmRuleShown> {
    let show = |rule: AlarmRule| AlarmRuleShown {
        rule,
        default: rule.threshold().map(|(value, _)| value),
        unit: rule.threshold().map(|(_, unit)| unit.to_owned()),
        thresholds: thresholds.iter().filter(|one| one.rule == rule).cloned().collect(),
    };
    AlarmRule::ALL.into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_applies_before_the_tag_and_the_tag_before_all() {
        let rule = AlarmRule::SnapshotOld;
        let one = |vm: Option<&str>, tag: Option<&str>, value| AlarmThreshold {
            rule,
            vm: vm.map(|vm| vm.parse().unwrap()),
            tag: tag.map(|tag| tag.parse().unwrap()),
            value,
        };
        let mut all = Vec::new();
        let prod: [Tag; 1] = ["prod".parse().unwrap()];
        assert_eq!(of(&all, rule, Some(("web", &[]))), Some(72));
        set(&mut all, one(Some("w*"), None, Some(12)));
        set(&mut all, one(None, Some("prod"), None));
        set(&mut all, one(None, None, Some(24)));
        assert_eq!(of(&all, rule, Some(("web", &prod))), Some(12));
        assert_eq!(of(&all, rule, Some(("db", &prod))), None);
        assert_eq!(of(&all, rule, Some(("db", &[]))), Some(24));
        set(&mut all, one(Some("web"), None, Some(6)));
        set(&mut all, one(Some("w*"), None, Some(7)));
        assert_eq!((of(&all, rule, Some(("web", &[]))), all.len()), (Some(7), 4));
        assert_eq!(of(&all, AlarmRule::DatastoreFull, None), Some(1));
    }
}
