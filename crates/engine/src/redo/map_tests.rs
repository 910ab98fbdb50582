use super::*;

fn loaded(map: &Map, number: u64) {
    assert!(map.begin_load(number));
    let base = number * REGION_BYTES;
    let zero = Piece { start: base, len: REGION_BYTES, slot: ZERO_SLOT, offset: 0 };
    assert!(map.end_load(number, Some(&[zero])));
}

/// A region under random updates matches a plain array, through the change from runs to a dense page.
#[test]
fn updates_match_a_plain_array() {
    let map = Map::new(usize::MAX);
    loaded(&map, 3);
    let base = 3 * REGION_BYTES;
    let mut model = vec![(ZERO_SLOT, 0u64); REGION_SECTORS];
    let mut x = 12345u64;
    let mut random = |below: u64| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) % below
    };
    for step in 0..6000 {
        let at = random(REGION_SECTORS as u64);
        let len = 1 + random(16.min(REGION_SECTORS as u64 - at));
        let (slot, sector) = (1 + random(3) as Slot, random(1 << 40));
        map.update(Piece { start: base + at * SECTOR, len: len * SECTOR, slot, offset: sector * SECTOR });
        for i in 0..len {
            model[(at + i) as usize] = (slot, sector + i);
        }
        if step % 500 == 0 || step == 5999 {
            let mut out = Vec::new();
            assert!(matches!(map.lookup(base..base + REGION_BYTES, &mut out), Lookup::Yes));
            let flat: Vec<(Slot, u64)> = out
                .iter()
                .flat_map(|p| (0..p.len / SECTOR).map(move |i| (p.slot, sector_of(p, i))))
                .collect();
            assert_eq!(flat, model, "step {step}");
        }
    }
}

fn sector_of(piece: &Piece, i: u64) -> u64 {
    if piece.slot == ZERO_SLOT { 0 } else { piece.offset / SECTOR + i }
}

#[test]
fn a_change_during_a_build_makes_it_repeat() {
    let map = Map::new(usize::MAX);
    assert!(map.begin_load(0));
    assert!(!map.begin_load(0), "one builder at a time");
    map.update(Piece { start: 0, len: SECTOR, slot: 1, offset: 512 });
    assert!(!map.begin_load(0), "asking again must not wipe the change out");
    let zero = Piece { start: 0, len: REGION_BYTES, slot: ZERO_SLOT, offset: 0 };
    assert!(!map.end_load(0, Some(&[zero])));
    assert!(matches!(map.lookup(0..SECTOR, &mut Vec::new()), Lookup::Missing(0)));
}

#[test]
fn eviction_keeps_the_limit() {
    let map = Map::new(1000);
    for number in 0..100 {
        loaded(&map, number);
    }
    assert!(map.bytes() <= 1000, "{} bytes", map.bytes());
    assert!(matches!(map.lookup(99 * REGION_BYTES..99 * REGION_BYTES + 512, &mut Vec::new()), Lookup::Yes));
}

#[test]
fn lookups_cross_regions_and_merge() {
    let map = Map::new(usize::MAX);
    loaded(&map, 0);
    loaded(&map, 1);
    map.update(Piece { start: REGION_BYTES - 512, len: 1024, slot: 2, offset: 8192 });
    let mut out = Vec::new();
    assert!(matches!(map.lookup(REGION_BYTES - 1024..REGION_BYTES + 1024, &mut out), Lookup::Yes));
    assert_eq!(out.len(), 3);
    assert_eq!(out[1], Piece { start: REGION_BYTES - 512, len: 1024, slot: 2, offset: 8192 });
}

/// A map that others leave no room keeps its own minimum, and gives back what it had above it.
#[test]
fn all_maps_of_a_core_share_one_limit() {
    let cap = 2 * MAP_BYTES_MIN;
    let (first, second) = (Map::new(cap), Map::new(cap));
    let fill = |map: &Map| {
        for number in 0..4000 {
            loaded(map, number);
            let pieces = (0..64).map(|n| n * 2 * SECTOR);
            let base = number * REGION_BYTES;
            pieces.for_each(|at| map.update(Piece { start: base + at, len: SECTOR, slot: 1, offset: 0 }));
        }
    };
    fill(&first);
    assert!(first.bytes() > MAP_BYTES_MIN, "{} bytes", first.bytes());
    fill(&second);
    fill(&first);
    let both = first.bytes() + second.bytes();
    assert!(both <= cap + 2 * MAP_BYTES_MIN, "{both} bytes of {cap}");
    drop((first, second));
    assert_eq!(RESIDENT_BYTES.get(), 0);
}
