"""Pictures to bytes and back: the live stream (`h264`), files (`mp4`) and stills (`still`), also those that strangers
sent (`sandbox`).

Owns colour conversion and every third-party codec. Does not own how bytes travel (`wire`), pacing (`session`)
or where files are kept. Called by `session`, `server`, `trainer`, `api` and the command line.
"""
