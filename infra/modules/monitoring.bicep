// Application Insights, its export to storage for the nightly trends, its workbook, and alerts.

param name string
param location string
param tags object
param principalId string
param alertEmails string[]
param actionGroupIds string[]

@description('Empty: telemetry is not exported.')
param telemetryAccountId string

@description('Empty: a new workspace is created.')
param workspaceId string

var metricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'
// Metrics are aggregated before sampling, so the nightly job compares events with them.
var exported = ['AppEvents', 'AppRequests', 'AppDependencies', 'AppTraces', 'AppMetrics']

// Each log line begins with its action and its resource: `[action_failed] my-plan: …`. The host passes
// on the text of a line, but none of its fields, so these two are what an alert can rely on.
// All alerts except the first react to a log line. An app whose settings are refused runs no function
// and writes nothing. The first alert therefore counts runs, and returns a row if the count is 0.
var alerts = [
  {
    name: 'nothing-runs'
    description: 'No metric was collected for 15 minutes, so nothing is scaled. Check whether the app refuses its settings.'
    query: 'requests | where name == "metric_collector" | summarize runs = count() | where runs == 0'
    minutes: 15
    above: 0
    severity: 1
  }
  {
    name: 'poison'
    description: 'A message could not be processed. The log line and the decision log give the reason.'
    query: 'traces | where message startswith "[poison]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'action-failed'
    description: 'A plan could not be changed, or not in time. The log line gives the answer of Azure.'
    query: 'traces | where message startswith "[action_failed]" or message startswith "[reconciled_failed]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'backlog-not-falling'
    description: 'Work waits, and the backlog has not fallen for long. Perhaps no instance works.'
    query: 'traces | where message startswith "[backlog_not_falling]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'source-failed'
    description: 'A metric or the capacity of a plan could not be read in three or more minutes of fifteen.'
    query: 'traces | where message startswith "[source_failed]" | parse message with "[" action "] " resource ": " * | summarize failing = dcount(bin(timestamp, 1m)) by resource | where failing >= 3'
    minutes: 15
    above: 0
    severity: 2
  }
  {
    name: 'events-gone'
    description: 'Events were deleted from the hub before the app read them. The log line names them.'
    query: 'traces | where message startswith "[gap]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'breaker-opened'
    description: 'Too many events failed. The app processes no events until a probe succeeds or an operator closes the breaker.'
    query: 'traces | where message startswith "[breaker_opened]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'failures'
    description: 'Functions fail. See the exceptions of these operations.'
    query: 'requests | where success == false'
    minutes: 15
    above: 5
    severity: 2
  }
  {
    name: 'at-maximum'
    description: 'In 30 of the last 45 minutes, a plan was at its maximum, and its rules recommended no less.'
    query: 'traces | where message startswith "[held_at_maximum]" | parse message with "[" action "] " resource ": " * | summarize held = dcount(bin(timestamp, 1m)) by resource | where held >= 30'
    minutes: 45
    above: 0
    severity: 2
  }
]

var usedWorkspaceId = empty(workspaceId) ? workspace.id : workspaceId
var people = concat(actionGroupIds, empty(alertEmails) ? [] : [mail.id])

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-02-01' = if (empty(workspaceId)) {
  name: name
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
    publicNetworkAccessForIngestion: 'Enabled'
    publicNetworkAccessForQuery: 'Enabled'
    features: { disableLocalAuth: true }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: name
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: usedWorkspaceId
    publicNetworkAccessForIngestion: 'Enabled'
    publicNetworkAccessForQuery: 'Enabled'
    DisableLocalAuth: true
  }
}

resource export 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(telemetryAccountId)) {
  name: 'telemetry-to-storage'
  scope: insights
  properties: {
    storageAccountId: telemetryAccountId
    logs: [for category in exported: { category: category, enabled: true }]
  }
}

resource mayPublish 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(insights.id, principalId, metricsPublisher)
  scope: insights
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', metricsPublisher)
  }
}

var workbookContent = loadJsonContent('../workbook/autoscaler.json')

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(insights.id, 'workbook')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Autoscaler'
    category: 'workbook'
    sourceId: insights.id
    // The queries of the workbook run on this resource.
    serializedData: string(union(workbookContent, { fallbackResourceIds: [insights.id] }))
  }
}

resource mail 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(alertEmails)) {
  name: name
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'autoscaler'
    emailReceivers: [
      for email in alertEmails: {
        name: email
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource rules 'Microsoft.Insights/scheduledQueryRules@2026-03-01' = [
  for alert in alerts: {
    name: '${name}-${alert.name}'
    location: location
    tags: tags
    properties: {
      displayName: alert.name
      description: alert.description
      severity: alert.severity
      enabled: true
      // The component has all tables from the start, and no rows of other apps in the same workspace.
      scopes: [insights.id]
      skipQueryValidation: true
      evaluationFrequency: 'PT5M'
      windowSize: 'PT${alert.minutes}M'
      criteria: {
        allOf: [
          {
            query: alert.query
            timeAggregation: 'Count'
            operator: 'GreaterThan'
            threshold: alert.above
            failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
          }
        ]
      }
      autoMitigate: true
      actions: { actionGroups: people }
    }
  }
]

output insightsName string = insights.name
output actionGroupIds string[] = people
output workspaceId string = usedWorkspaceId
