# Installs the agent `scribe`: a real one would be fetched from a registry here.
set -e

cat >"$AGENT_PREFIX/bin/scribe" <<'THE_END'
#!/bin/sh
# scribe [--session NAME | --resume NAME] FILE: does what FILE says, and remembers it.
if [ "$1" = --version ]; then
  cat "${0%/*}/../version"
  exit
fi
memory=$HOME/.scribe/$2
mkdir -p "$HOME/.scribe"
if [ "$1" = --resume ] && [ ! -f "$memory" ]; then
  echo "scribe: there is no session $2" >&2
  exit 2
fi
done=0
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
    'Write "'*'" to '*.)
      text=${line#Write \"}
      file=${text##*\" to }
      text=${text%\" to *}
      ;;
    'Write what you wrote first to '*.)
      file=${line#Write what you wrote first to }
      text=$(head -n 1 "$memory")
      ;;
    *) continue ;;
  esac
  printf '%s\n' "$text" >"${file%.}"
  printf '%s\n' "$text" >>"$memory"
  done=$((done + 1))
done <"$3"
echo "I wrote $done of $done."
THE_END
chmod 755 "$AGENT_PREFIX/bin/scribe"
echo "scribe $AGENT_VERSION" >"$AGENT_PREFIX/version"
