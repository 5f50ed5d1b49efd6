#!/bin/sh
# Score a sample of this week's rows, compare it with earlier weeks, and tell Prometheus.
#
#   weekly.sh NAME INPUT FOLDER [options of qaeval score]
#
#   NAME     of this audit; a label of its gauges
#   INPUT    this week's Parquet files, as qaeval score takes them
#   FOLDER   keeps history/NAME, runs/NAME/WEEK, reports/NAME/WEEK and logs/NAME/WEEK.log
#
# From the environment:
#
#   CONTEXTS     so many contexts are a sample (default 1000)
#   BY           columns whose values are slices, such as system,topic
#   TEXTFILES    folder that the textfile collector reads; without one no gauges leave FOLDER
#   WEEK         default this one, such as 2026-W05; with the same one again the job goes on. Pages
#                and mails call the run so.
#   AUDIT_CONFIG YAML of tolerances, for qaeval audit --config
#   SCORE        what starts qaeval score, such as
#                "ray job submit --address http://head:8265 -- qaeval score"
#
# Exit codes: 0 nothing moved; 3 the data moved; 1 the job broke and may be run again; 2 bad
# request: it would break again. Nothing is printed where nothing moved.
set -eu

name=${1:?NAME INPUT FOLDER}
input=${2:?NAME INPUT FOLDER}
folder=${3:?NAME INPUT FOLDER}
shift 3

week=${WEEK:-$(date -u +%G-W%V)}
out=$folder/runs/$name/$week
report=$folder/reports/$name/$week
history=$folder/history/$name
log=$folder/logs/$name/$week.log
columns=$(printf %s "${BY:-}" | tr , ' ')

# What broke is no verdict on the data: whatever the code was, it must not look like one.
broke() {
  tail -n 5 "$log" >&2
  echo "$name $week: $1 broke (exit code $2); all of it is in $log" >&2
  if [ "$2" -eq 2 ]; then exit 2; fi
  exit 1
}

# The collector reads *.prom at any time: the file comes whole, by a rename in the same folder. An
# audit without a verdict is told, too; where none ended, the gauges stay, and their time with them.
publish() {
  if [ -n "${TEXTFILES:-}" ] && [ -f "$report/audit.prom" ]; then
    cp "$report/audit.prom" "$TEXTFILES/.qaeval_$name.tmp"
    chmod 644 "$TEXTFILES/.qaeval_$name.tmp"
    mv -f "$TEXTFILES/.qaeval_$name.tmp" "$TEXTFILES/qaeval_$name.prom"
  fi
}

mkdir -p "$report" "${log%/*}"

code=0
# shellcheck disable=SC2086 # SCORE is a command and its words.
${SCORE:-qaeval score} "$input" --out "$out" --set "input.sample_groups=${CONTEXTS:-1000}" \
  --name "$week" ${BY:+--carry "$BY"} "$@" >>"$log" 2>&1 || code=$?
if [ "$code" -ne 0 ]; then broke "qaeval score" "$code"; fi

set -- "$out" --history "$history" --to "$report" --name "$week"
for column in $columns; do set -- "$@" --by "$column"; done
if [ -n "${AUDIT_CONFIG:-}" ]; then set -- "$@" --config "$AUDIT_CONFIG"; fi
# The first week is what all others are compared with.
if [ ! -f "$history/pinned.json" ]; then set -- "$@" --pin; fi

# One of an attempt before is no news.
rm -f "$report/audit.prom"
code=0
qaeval audit "$@" >"$report/said.txt" 2>&1 || code=$?
cat "$report/said.txt" >>"$log"
publish
case $code in
  0) ;;
  3)
    echo "$name $week: the data moved; see $report"
    cat "$report/said.txt"
    exit 3
    ;;
  *) broke "qaeval audit" "$code" ;;
esac
