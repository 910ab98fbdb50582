#!/usr/bin/env bash
# Runs the stages named, or all of them; prints each one's time, the tests that cannot run here with the reasons, and
# `N passed, N failed` as the last line. The last three stages run beside one another.
# usage: test.sh [STAGE...]
set -uo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# Stage and the seconds after which it is stopped, so that a hang ends: several times what it takes cold on two cores.
# What they take is printed at the end.
STAGES=(setup:600 lint:1200 build:2400 unit:1200 clients:3600 guest:3600 crash:3600)

# A package takes minutes to build.
[[ -n ${SMOKE_PACKAGE:-} ]] && STAGES+=(package:3600)

# The stages that run beside one another after all others, with their niceness. The clients wait most of their time and
# have limits of time; the guest and the crash campaigns take what is left of the processors.
declare -A BESIDE=([clients]=0 [guest]=5 [crash]=19)

logs=${CARGO_TARGET_DIR:-target}/test-logs
passed=0
failed=0
skipped=()

# The build for development builds in half the time of the release build; long campaigns are worth the other one.
profile=${UNSTUN_TEST_PROFILE:-dev}
# Nothing is built twice there.
[[ -n ${CI:-} ]] && export CARGO_INCREMENTAL=0

cargo_test() { cargo test --profile "$profile" --locked --workspace --no-fail-fast "$@"; }

# Test files (or folders) choose their stage by name: tests/crash*, clients*, guest*, and all others are unit tests.
test_targets() {
    local file name
    for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        [[ -e $file ]] || continue
        name=${file#crates/*/tests/}
        name=${name%/main.rs}
        name=${name%.rs}
        case "$1:$name" in
            crash:crash* | clients:clients* | guest:guest*) echo "--test=$name" ;;
            crash:* | clients:* | guest:* | unit:crash* | unit:clients* | unit:guest*) ;;
            unit:*) echo "--test=$name" ;;
        esac
    done | sort -u
}

fetch_crates() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo fetch --quiet --locked --target "$host"
}

stage_setup() {
    scripts/setup.sh test && fetch_crates
}

# With LINT_DOCS the documentation is built too: broken links and HTML, after another check of every crate.
stage_lint() {
    local bad=0 lints=2
    cargo fmt --all --check || bad=$((bad + 1))
    cargo clippy --profile "$profile" --locked --workspace --all-targets -- -D warnings || bad=$((bad + 1))
    if [[ -n ${LINT_DOCS:-} ]]; then
        lints=3
        RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps || bad=$((bad + 1))
    fi
    echo "test result: lints. $((lints - bad)) passed; $bad failed"
    return $bad
}

stage_build() {
    cargo_test --no-run
}

# shellcheck disable=SC2046 # target names have no spaces
stage_unit() {
    local bad=0
    cargo_test --lib --bins $(test_targets unit) || bad=1
    cargo_test --doc || bad=1
    return $bad
}

# Without a target cargo would run every test there is.
# shellcheck disable=SC2046
only() {
    [[ -n $(test_targets "$1") ]] || { echo "no test file belongs to stage $1"; return 1; }
    cargo_test $(test_targets "$1") -- "${@:2}"
}

stage_crash() { only crash; }

# Those that wait for leases and watchdogs most of their time, one after the other beside all others.
WAITING=(of_two_daemons_on_one_device a_lease_is_taken_over a_core_that_panics_or_hangs)

# Prints its input, then the ten tests before whose results most time passed. For tests that run one at a time.
with_slowest() {
    local line now before=${EPOCHREALTIME/[.,]/} times=()
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ $line =~ ^test\ ([^\ ]+)\ \.\.\.\  ]] || continue
        now=${EPOCHREALTIME/[.,]/}
        times+=("$(((now - before) / 1000)) ms ${BASH_REMATCH[1]}")
        before=$now
    done
    printf '\nthe slowest tests:\n'
    # sed reads to the end: `head` would end sort by a signal now and then, and with it the stage.
    printf '%s\n' "${times[@]}" | sort -rn | sed -n 1,10p
}

# One client at a time: two loads on two cores would starve each other into time-outs.
stage_clients() {
    local bad=0
    cargo_test --test=clients -- --test-threads=1 "${WAITING[@]}" >"$logs/clients-waiting.log" 2>&1 &
    only clients --test-threads=1 "${WAITING[@]/#/--skip=}" | with_slowest || bad=1
    wait $! || bad=1
    cat "$logs/clients-waiting.log"
    return $bad
}

stage_guest() { only guest; }

stage_package() {
    local bad=0
    scripts/smoke-package.sh || bad=1
    echo "test result: package. $((1 - bad)) passed; $bad failed"
    return $bad
}

if [[ ${1:-} == --stage ]]; then
    # shellcheck disable=SC2064 # the name as it is now
    trap "echo \$SECONDS >'$logs/$2.seconds'" EXIT
    "stage_$2"
    exit
fi

# Tests that cannot run here, as `NAME: REASON`, each once. A test says `SKIPPED NAME: REASON`; where tests run one at a time the
# name is that of the main thread, and the line begins with `test NAME ... `.
skipped_in() {
    awk '/SKIPPED [^ ]+: / {
        name = $1 == "test" ? $2 : ($2 == "main:" ? "" : substr($2, 1, length($2) - 1))
        if (name != "" && !seen[name]++) { sub(/^.*SKIPPED [^ ]+: /, ""); print name ": " $0 }
    }' "$1"
}

# The failed tests of a log, each with the first lines of what it printed when it panicked.
failed_in() {
    awk '/^failures:$/ || /^test result: / { name = ""; left = 0 }
        /^---- .* stdout ----$/ { name = $2; left = 0 }
        name != "" && /panicked at / { print "  " name; left = 6 }
        left-- > 0 && NF { print "    " substr($0, 1, 300) }' "$1"
}

limit_of() {
    local stage
    for stage in "${STAGES[@]}"; do
        [[ ${stage%%:*} == "$1" ]] && { echo "${stage##*:}"; return; }
    done
    echo "test.sh: no stage named $1; there are: ${STAGES[*]%%:*}" >&2
    return 2
}

declare -A process limits

# Starts a stage, whose output goes to its log.
start_stage() {
    local name=$1
    limits[$name]=${UNSTUN_STAGE_LIMIT_S:-$(limit_of "$name")}
    rm -f "$logs/$name.seconds"
    : >"$logs/$name.log"
    nice -n "${BESIDE[$name]:-0}" timeout --kill-after=10 "${limits[$name]}" \
        scripts/test.sh --stage "$name" </dev/null >>"$logs/$name.log" 2>&1 &
    process[$name]=$!
}

# timeout leaves the terminal's process group: Ctrl-C has to be passed on to it.
stop_stages() {
    ((${#process[@]})) && kill -TERM "${process[@]}" 2>/dev/null
    wait
    exit "$1"
}

# Shows a stage that was started until its end, and counts its tests. A stage that dies without naming a failed test
# (compiler error, signal, time limit) counts as one failure.
finish_stage() {
    local name=$1 log=$logs/$1.log status p f missing seconds line
    printf '\n=== %s\n' "$name"
    # In the background, because a trap runs only after the foreground command ends.
    tail --lines=+1 --follow --sleep-interval=0.2 --pid="${process[$name]}" "$log" &
    wait $!
    wait "${process[$name]}"
    status=$?
    unset "process[$name]"
    seconds=$(cat "$logs/$name.seconds" 2>/dev/null || echo "${limits[$name]}")
    read -r p f < <(awk '/^test result: / { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    mapfile -t missing < <(skipped_in "$log")
    # libtest counts them as passed.
    p=$((p - ${#missing[@]}))
    skipped+=("${missing[@]}")
    ((f == 0)) || failures+=$(failed_in "$log")$'\n'
    ((status == 124 || status == 137)) && echo "stage $name was stopped after ${limits[$name]} s"
    if ((status != 0 && f == 0)); then
        f=1
        failures+="  stage $name ended with status $status, though none of its tests failed"$'\n'
    fi
    printf -v line '%-8s %5d passed %5d failed %5d s\n' "$name" "$p" "$f" "$seconds"
    printf '=== %s' "$line"
    summary+=$line
    passed=$((passed + p))
    failed=$((failed + f))
    return "$status"
}

wanted=("$@")
(($#)) || wanted=("${STAGES[@]%%:*}")
for name in "${wanted[@]}"; do limit_of "$name" >/dev/null || exit 2; done
[[ ${wanted[0]} == setup ]] || scripts/setup.sh test || exit 1

mkdir -p "$logs"
summary=""
failures=""
trap 'stop_stages 130' INT
trap 'stop_stages 143' TERM
beside=()
for name in "${wanted[@]}"; do
    [[ -v BESIDE[$name] ]] && { beside+=("$name"); continue; }
    start_stage "$name"
    finish_stage "$name" && continue
    # Nothing after these can say anything useful.
    [[ $name == setup || $name == build ]] && { beside=(); break; }
done
for name in "${beside[@]}"; do start_stage "$name"; done
for name in "${beside[@]}"; do finish_stage "$name"; done
printf -v total '%-8s %5d passed %5d failed %5d s\n' total "$passed" "$failed" "$SECONDS"
((${#skipped[@]})) && printf '\nskipped, because they cannot run here:\n' && printf '  %s\n' "${skipped[@]}"
[[ -n $failures ]] && printf '\nfailed:\n%s' "$failures"
printf '\n%s%s%d passed, %d failed\n' "$summary" "$total" "$passed" "$failed"
((failed == 0))
