# A Tidelog replica server. From the root of the repository:
#   docker build -f deploy/docker/replica.Dockerfile -t tidelog/replica .
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY services services
RUN python -m venv /opt/tidelog \
 && /opt/tidelog/bin/pip install --no-cache-dir --constraint constraints.txt ".[replica,security]"

FROM python:3.12-slim-bookworm
RUN groupadd --gid 10001 tidelog \
 && useradd --uid 10001 --gid tidelog --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tidelog \
 && install --directory --owner tidelog --group tidelog --mode 0700 /var/lib/tidelog
COPY --from=build /opt/tidelog /opt/tidelog
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDELOG_HOST=0.0.0.0 \
    TIDELOG_PORT=9092 \
    TIDELOG_DATA_DIR=/var/lib/tidelog
USER 10001:10001
VOLUME ["/var/lib/tidelog"]
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-m", "tidelog.probe"]
ENTRYPOINT ["python", "-m", "tidelog_replica"]
