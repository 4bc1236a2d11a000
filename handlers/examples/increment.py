def handler(payload, context):
    return {"n": payload["n"] + 1}
