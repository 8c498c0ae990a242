"""The page to try the model in a browser: its HTML at `GET /`, its other files under /page/."""
